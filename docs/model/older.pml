/* A dataset that is older than its log. Jobs of this version begin its history, while processes of a version without
   a log still append and replace: the barrier, the baseline, and the import of such an append; and a closed baseline, which
   lists the older files in an entry. One partition. */
#include "common.pml"

#ifndef COMMIT_A
#define COMMIT_A 1         /* processes that commit job 0, and job 1 */
#endif
#ifndef COMMIT_B
#define COMMIT_B 1
#endif
#ifndef APPENDS
#define APPENDS 1          /* older version's jobs: an append, or two, */
#endif
#ifndef REPLACES
#define REPLACES 0         /* and a replace, which takes the place of the second append */
#endif
#ifndef CLOSES
#define CLOSES 0           /* processes that close the baseline */
#endif

/* Files: what was there before, one of each job. The last job comes when all is at rest, and enters what is left. */
#define OLD      1
#define MINE(j)  (2 << (j))
#define LAST     2
#define APPENDED 3
#define REPLACED 4
#define SECOND   4
#define CLOSER   5         /* no job */
#define THEIRS(f) ((f) & (MINE(APPENDED) | MINE(REPLACED)))
#define OWN      (MINE(0) | MINE(1) | MINE(LAST))

#define APPEND  0
#define REPLACE 1

#define BASELINE 1
#define COMMIT   2
#define CLOSING  3

/* The log, from 1. `listed` is what the entries up to one add up to; `open`: the baseline's objects are in the table. */
#define LENGTH 7
byte size = 1;
byte kind[LENGTH];
byte who[LENGTH];
byte removed[LENGTH];      /* the plan of a commit: what it deletes */
byte listed[LENGTH];
bit open[LENGTH];
byte epoch;
byte end[5];               /* the entry of each job, older appends included */
bit finished[3];           /* the job has deleted all that its plan names, and is cleaned up */
byte mode[3];

byte objects = OLD;
byte pending = OWN;
bit lock, barred;          /* lock.json is an older replace's, or ours for ever */
bit manifest[5];           /* of the older version's jobs: that is their commit */
byte written[2];           /* how many entries there were when the manifest of an append was written */
byte marked;               /* _SUCCESS: 0 for none, an entry's number, or 10 + a job of the older version */

#define BY(j) (10 + (j))
#define OF(a) written[(a) - APPENDED]
#define UNFINISHED(h) ((end[0] != 0 && end[0] < (h) -> 0 : MINE(0)) | (end[1] != 0 && end[1] < (h) -> 0 : MINE(1)) \
  | (end[LAST] != 0 && end[LAST] < (h) -> 0 : MINE(LAST)) \
  | (manifest[APPENDED] -> 0 : MINE(APPENDED)) | (manifest[REPLACED] -> 0 : MINE(REPLACED)))
#define ENTERED(a, h) (end[a] != 0 && end[a] < (h))
/* What a reader lists for the baseline: no job's, or one's of the older version that is in no entry. */
#define UNLISTED(all, h) ((all) & ~OWN & ~UNFINISHED(h) & (ENTERED(APPENDED, h) -> ~MINE(APPENDED) : ~0) \
  & (APPENDS == 2 && ENTERED(SECOND, h) -> ~MINE(SECOND) : ~0))
#define TABLE(h) (listed[(h) - 1] | (open[(h) - 1] -> UNLISTED(objects, h) : 0))
#define BEGUN(h) (epoch != 0 && epoch < (h))
#define MANIFESTS (manifest[APPENDED] + 2 * manifest[REPLACED])

bit snapshot_file_missing, job_ended_twice, baseline_after_commit, replace_leaves_older_data, entered_though_in_baseline;
bit objects_are_not_the_table, marker_not_newest, job_not_ended, listed_twice, append_without_entry;

/* By the store's clock: newer than the baseline. Its file is there, and no entry that was read names it. */
inline qualifies(a) {
  ok = manifest[a] && !ENTERED(a, head) && (objects & MINE(a));
#ifdef FAULT_IMPORT_BY_NEWEST_COMMIT
  /* And newer than the newest commit of ours, unless the marker names it. */
  f = head - 1;
  do :: f > 0 && (kind[f] == BASELINE || who[f] >= APPENDED) -> f-- :: else -> break od;
  if :: saw != BY(a) && OF(a) <= f -> ok = 0 :: else fi;
  f = 0;
#endif
#ifndef FAULT_IMPORT_BEFORE_BASELINE
  if :: epoch != 0 && epoch < head && kind[epoch] == BASELINE && OF(a) <= epoch -> ok = 0 :: else fi;
#endif
#ifndef FAULT_IMPORT_OF_LISTED
  if :: listed[head - 1] & MINE(a) -> ok = 0 :: else fi;
#endif
}

inline check() {
  RULE(snapshot_file_missing, (listed[size - 1] & ~objects) == 0)
}

inline create(at, what, job, r) {
  if
  :: at < size -> ok = 0
  :: else ->
    kind[at] = what; who[at] = job; removed[at] = r;
    if
    :: what == BASELINE ->
      RULE(baseline_after_commit, epoch == 0);
      listed[at] = 0; open[at] = 1; epoch = at
    :: what == CLOSING ->
      RULE(listed_twice, (listed[at - 1] & (r)) == 0);
      /* Readers of what is new since a generation get an append that came after the baseline. */
      RULE(append_without_entry, (r & MINE(APPENDED)) == 0 || saw != BY(APPENDED) || !BEGUN(at) || OF(APPENDED) <= epoch);
      listed[at] = listed[at - 1] | (r); open[at] = 0;
      if :: epoch == 0 -> epoch = at :: else fi
    :: else ->
      RULE(listed_twice, (listed[at - 1] & MINE(job)) == 0);
      RULE(job_ended_twice, end[job] == 0);
      end[job] = at;
      if :: epoch == 0 -> epoch = at :: else fi;
      if
      :: job < APPENDED && mode[job] == REPLACE ->
        /* An append of the older version that came after the plan is in no entry, and will be in a later one. */
        RULE(replace_leaves_older_data, ((listed[at - 1] | (open[at - 1] -> objects & OLD : 0)) & ~(r)) == 0);
        listed[at] = MINE(job); open[at] = 0
      :: else ->
        RULE(entered_though_in_baseline, job < APPENDED || kind[epoch] != BASELINE || OF(job) > epoch);
        listed[at] = listed[at - 1] | MINE(job); open[at] = open[at - 1]
      fi
    fi;
    size++; ok = 1
  fi;
  check()
}

proctype committer(byte j) {
  byte head, base, rest, saw, f, older;
  bit ok, seen;

again:
  atomic {
    head = size; rest = 0; f = 0;
    if :: j == CLOSER -> goto table :: j != CLOSER && end[j] != 0 -> goto ended :: else fi
  }
#ifndef FAULT_NO_BARRIER
  /* The lock of older versions, for ever. A living replace of theirs is waited for. */
#ifdef FAULT_BARRIER_TAKES_LIVE_LOCK
  atomic { if :: head > 1 && epoch != 0 :: else -> barred = 1 fi }
#else
  if
  :: atomic { head > 1 && epoch != 0 && epoch < head }
  :: atomic { (head == 1 || epoch == 0 || epoch >= head) && !lock -> barred = 1 }
  fi;
#endif
#endif
  /* The baseline, if there is data and the history has not begun. */
baseline:
  atomic {
    if
    :: epoch != 0 && epoch < head -> goto opened
    :: else ->
      if :: (objects & ~UNFINISHED(head)) == 0 -> goto opened :: else fi
    fi
  }
  atomic {
    if :: create(head, BASELINE, j, 0) :: mortal -> goto dead fi;
#ifdef FAULT_BASELINE_UNCHECKED
    head++;
    if :: ok :: else -> ok = 0; if :: create(head, BASELINE, j, 0) :: head < size fi; head = size fi
#else
    head++;
    if :: ok :: else -> goto baseline fi
#endif
  }
opened:
  atomic { saw = marked }
  /* Where the marker is an older version's, every append of it that is in no entry gets one. */
import:
#ifndef FAULT_NO_IMPORT
  atomic {
    ok = 0;
    if :: saw >= 10 -> older = APPENDED; qualifies(older) :: else fi;
    if :: saw >= 10 && !ok && APPENDS == 2 -> older = SECOND; qualifies(older) :: else fi;
    if :: !ok -> older = 0; goto imported :: else fi
  }
#ifndef FAULT_IMPORT_BESIDE_REMOVAL
  /* A commit that may still delete it is driven to its end first: only then a HEAD tells. */
  atomic {
    f = head - 1;
    do :: f > 0 && (kind[f] != COMMIT || who[f] >= APPENDED || finished[who[f]]) -> f-- :: else -> break od;
    if :: f > 0 -> objects = objects & ~removed[f]; finished[who[f]] = 1; check(); f = 0; goto import :: else fi
  }
#endif
#ifndef FAULT_IMPORT_OF_REPLACED
  atomic { if :: (objects & MINE(older)) == 0 -> goto import :: else fi }
#endif
  atomic {
    if :: create(head, COMMIT, older, 0) :: mortal -> goto dead fi;
    head++; goto import
  }
#endif
imported:
  atomic { if :: j == CLOSER -> goto list :: else fi }
  /* Plan: what a listing finds of no unfinished job. */
  atomic {
    base = head;
    rest = (mode[j] == REPLACE -> objects & ~UNFINISHED(head) & ~MINE(j) : 0);
  }
  /* The marker that was there goes, then the file comes. */
  atomic { if :: marked == saw && saw != 0 -> marked = 0 :: else fi; if :: true :: mortal -> goto dead fi }
  atomic {
    if :: pending & MINE(j) -> pending = pending & ~MINE(j); objects = objects | MINE(j) :: else fi;
    if :: true :: mortal -> goto dead fi
  }
create_entry:
  atomic {
    if :: create(head, COMMIT, j, rest) :: mortal -> goto dead fi;
    if
    :: ok -> goto ended
    :: else ->
      head++;
      if
      :: end[j] != 0 && end[j] < head -> goto ended
      :: else ->
        if
#ifdef FAULT_BASELINE_IS_NO_CONFLICT
        :: mode[j] == REPLACE && kind[head - 1] == COMMIT -> base = head; rest = objects & ~UNFINISHED(head) & ~MINE(j)
#else
        :: mode[j] == REPLACE -> base = head; rest = objects & ~UNFINISHED(head) & ~MINE(j)
#endif
        :: else
        fi;
        goto create_entry
      fi
    fi
  }
ended:
  atomic { if :: finished[j] -> goto done :: else -> rest = removed[end[j]] fi; if :: true :: mortal -> goto dead fi }
  atomic { objects = objects & ~rest; rest = 0; check(); if :: true :: mortal -> goto dead fi }
  /* The job's record goes, then its marker is written: not over that of an append which nobody has entered. */
  atomic { finished[j] = 1 }
mark:
  atomic { saw = marked }
  atomic {
    if
#ifndef FAULT_MARKER_OVER_APPEND
    :: APPENDS > 0 && saw >= 10 && end[saw - 10] == 0 -> goto done
#endif
    :: saw < 10 && saw >= end[j] -> goto done
    :: else -> if :: marked == saw -> marked = end[j] :: else -> goto mark fi
    fi
  }
  goto done;

  /* Close the baseline, unless a list names every file already. An append that the marker names gets its own entry first. */
table:
  atomic {
    if
    :: BEGUN(head) && !open[head - 1] -> goto done
    :: !BEGUN(head) && (objects & ~UNFINISHED(head)) == 0 -> goto done
    :: else
    fi
  }
#ifndef FAULT_CLOSE_BARS_LATE
  atomic { !lock -> barred = 1 }
#endif
#ifdef FAULT_CLOSE_WITHOUT_IMPORT
  atomic { saw = marked }
#else
  atomic { if :: BEGUN(head) -> goto opened :: else fi }
#endif
list:
  atomic { if :: BEGUN(head) && !open[head - 1] -> goto done :: else -> f = MANIFESTS fi }
  rest = objects;
  /* Which jobs have ended is looked up after the listing. */
  atomic {
#ifdef FAULT_CLOSE_UNFINISHED
    rest = rest & ~listed[head - 1];
#else
    rest = UNLISTED(rest, head);
#endif
    if :: rest == 0 && !BEGUN(head) -> goto done :: else fi
  }
#ifdef FAULT_CLOSE_BARS_LATE
  atomic { !lock -> barred = 1 }
#endif
  atomic { if :: f != MANIFESTS -> goto again :: else -> f = 0 fi }
close:
  atomic {
    if :: create(head, CLOSING, CLOSER, rest) :: mortal -> goto dead fi;
    if
    :: ok
#ifdef FAULT_CLOSE_NOT_LISTED_AGAIN
    :: else -> head = size; goto close
#else
    :: else -> goto again
#endif
    fi
  }
restore:
  atomic { saw = marked }
  atomic {
    if
    :: saw >= 10 && end[saw - 10] == 0 -> goto done
    :: saw < 10 && saw >= head -> goto done
    :: else -> if :: marked == saw -> marked = head :: else -> goto restore fi
    fi
  }
  goto done;
dead:
  atomic { crashed = 1 }
done:
  atomic { running--; head = 0; base = 0; rest = 0; saw = 0; f = 0; ok = 0; older = 0 }
}

/* An append of the older version: it takes no lock, and knows of no log. It may sleep, and at last it ends. */
proctype older_append(byte j) {
  marked = 0;
  objects = objects | MINE(j);
  atomic { manifest[j] = 1; OF(j) = size };
  marked = BY(j);
  running--
}

/* Its replace plans whatever a listing shows, under the lock. */
proctype older_replace() {
  byte rest;

  if
  :: atomic { !barred && !lock -> lock = 1 }
  :: barred -> goto done
  fi;
  rest = objects;
  marked = 0;
  objects = objects | MINE(REPLACED);
  manifest[REPLACED] = 1;
  atomic { objects = objects & ~rest; rest = 0; check() };
  marked = BY(REPLACED);
  lock = 0;
done:
  atomic { rest = 0; running-- }
}

inline come(n, j) {
  i = 0;
  do :: i < n -> running++; run committer(j); i++ :: else -> break od
}

init {
  byte i;
  atomic {
    if :: mode[0] = APPEND :: mode[0] = REPLACE fi;
    if :: mode[1] = APPEND :: mode[1] = REPLACE fi;
    if :: objects = 0 :: true fi;
    come(COMMIT_A, 0);
    come(COMMIT_B, 1);
    come(CLOSES, CLOSER);
    if :: APPENDS > 0 -> running++; run older_append(APPENDED) :: else fi;
    if :: APPENDS == 2 -> running++; run older_append(SECOND) :: else fi;
    if :: REPLACES > 0 -> running++; run older_replace() :: else fi;
    i = 0
  }
  running == 0;
  atomic { mortal = 0; if :: crashed && COMMIT_A > 0 -> running++; run committer(0) :: else fi }
  running == 0;
  atomic { if :: crashed && COMMIT_B > 0 -> running++; run committer(1) :: else fi }
  running == 0;
  /* The next commit enters an append that nobody has entered yet. */
  atomic { running++; run committer(LAST) }
  running == 0;
  atomic {
    RULE(job_not_ended, (end[0] != 0 || COMMIT_A == 0) && (end[1] != 0 || COMMIT_B == 0) && end[LAST] != 0);
    RULE(objects_are_not_the_table, objects == TABLE(size));
    RULE(marker_not_newest, marked == size - 1)
  }
}
