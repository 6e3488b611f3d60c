/* The commit race: jobs with unique file names on one log.
   Two jobs (or three), each with committers, aborters and recoverers; a file in each touched partition. */
#include "common.pml"

#ifndef JOBS
#define JOBS 2
#endif
#ifndef PARTS
#define PARTS 2            /* partitions; a job has one file in each that it touches */
#endif
#ifndef COMMIT_A
#define COMMIT_A 1
#endif
#ifndef ABORT_A
#define ABORT_A 0
#endif
#ifndef COMMIT_B
#define COMMIT_B 1
#endif
#ifndef ABORT_B
#define ABORT_B 0
#endif

/* Sets of objects are bits: what was there before, each job's files, one object of somebody else. */
#define OLD        ((1 << PARTS) - 1)
#define MINE(j)    (touched[j] << (PARTS * ((j) + 1)))
#define WITHIN(t)  ((t) | ((t) << PARTS) | ((t) << (2 * PARTS)) | (JOBS > 2 -> ((t) << (3 * PARTS)) : 0) | STRANGER_IN(t))
#define STRANGER   (1 << (PARTS * (JOBS + 1)))
#define STRANGER_IN(t) (((t) & 1) << (PARTS * (JOBS + 1)))
#define LOWEST(set) ((set) & (-(set)))

/* Kinds of entries, modes, casts, requests. */
#define BASELINE 0
#define COMMIT   1
#define ABANDON  2

#define APPEND  0
#define REPLACE 1
#define FAIL    2

#define COMMITTER 0
#define ABORTER   1
#define RECOVERER 2

#define CREATE   1
#define COMPLETE 2
#define ABORT    3
#define DELETE   4
#define MARK     5
#define KEEP     6
#define DROP     7
#define REMOVE   8

/* The log. `snap` and `ever` are what a reader folds from it; `end` finds a job's last entry. */
#define LENGTH (JOBS + 2)
byte size = 1;
byte kind[LENGTH];
byte who[LENGTH];
byte removed[LENGTH];
byte snap[LENGTH];
byte ever[LENGTH];
byte end[JOBS];
#ifdef LISTS
byte named[LENGTH];        /* the plan's list that an entry names, by its writer */
#define PLANNERS 6
#define WRITERS 12           /* each plans twice at most */
byte list[WRITERS];        /* what each list holds, plus 1; 0 where there is none */
byte owner[WRITERS];       /* the job that it was written for */
#endif

byte objects;
byte pending;
byte mode[JOBS];
byte touched[JOBS];

#ifdef MARKER
byte marked;               /* generation that _SUCCESS names */
byte through;              /* up to which generation removals are finished */
byte highest;              /* ghost: the newest that it ever named */
#endif
#ifdef FAULT_SUCCESS_RESTORED
byte saved[JOBS];
bit present = 1;
#define PRESENT present
#else
#define PRESENT 1
#endif

#ifdef DELETED_MARKER
/* _SUCCESS as the code has it: deleted before a commit publishes, written last. Each is unlike all others: `stamp`. */
byte marked;               /* generation that it names */
byte stamp = 1;            /* its ETag, 0 where there is none */
byte stamps = 1;           /* ghost: how many there were */
byte highest;              /* ghost: the newest that it ever named */
bit begun[JOBS];           /* what the job's state says: it is committing, */
bit closed[JOBS];          /* or aborting */
byte saved[JOBS];          /* the marker that was there when it began, */
byte savedgen[JOBS];       /* and the generation that it names */
bit record[JOBS];          /* the job's record is there: it has not ended */
bit state[JOBS];           /* ghost: its state is there and past `sealed` */
#if JOBS == 2
#define AT_WORK (state[0] || state[1])
#else
#define AT_WORK (state[0] || state[1] || state[2])
#endif
#endif

bit snapshot_file_missing, job_ended_twice, replace_leaves_older_data, fail_beside_data, removes_what_is_not_its_own;
bit marker_goes_back, marker_names_removed_data, marker_before_removal, marker_not_newest;
bit job_not_ended, upload_pending_at_rest, objects_are_not_the_snapshot, list_missing, list_left;

#define NAMED(l)        (kind[end[owner[l]]] == COMMIT && named[end[owner[l]]] == (l))
#define ENDED(j, n)     (end[j] != 0 && end[j] < (n))
#define COMMITTED(j, n) (ENDED(j, n) && kind[end[j]] == COMMIT)
#define ABANDONED(j, n) (ENDED(j, n) && kind[end[j]] == ABANDON)

/* A commit of another job between base and head that touched a partition of this one. */
#ifdef FAULT_CONFLICT_BY_FIRST_PARTITION
#define MEET(o, j) (touched[o] & touched[j] & 1)
#else
#define MEET(o, j) (touched[o] & touched[j])
#endif
#define BETWEEN(o, j, b, h) ((o) != (j) && end[o] >= (b) && end[o] < (h) && kind[end[o]] == COMMIT && MEET(o, j))
#if JOBS == 2
#define CONFLICT(j, b, h) BETWEEN(1 - (j), j, b, h)
#define UNFINISHED(o, n) (ENDED(o, n) -> 0 : MINE(o))
#define NOBODYS(n) (~(UNFINISHED(0, n) | UNFINISHED(1, n)))
#else
#define CONFLICT(j, b, h) (BETWEEN(0, j, b, h) || BETWEEN(1, j, b, h) || BETWEEN(2, j, b, h))
#define UNFINISHED(o, n) (ENDED(o, n) -> 0 : MINE(o))
#define NOBODYS(n) (~(UNFINISHED(0, n) | UNFINISHED(1, n) | UNFINISHED(2, n)))
#endif

inline check() {
  RULE(snapshot_file_missing, (snap[size - 1] & ~objects) == 0);
#ifdef FAULT_SUCCESS_RESTORED
  RULE(marker_names_removed_data, !present || (snap[marked] & ~objects) == 0)
#elif defined(MARKER)
  RULE(marker_names_removed_data, (snap[marked] & ~objects) == 0);
  RULE(marker_before_removal, through < marked || (objects & ever[marked] & ~snap[marked]) == 0)
#elif defined(DELETED_MARKER)
  /* Beside a job at work a slow one may name its own, older generation, and the other one's removals may be to come. */
  RULE(marker_names_removed_data, stamp == 0 || (snap[marked] & ~objects) == 0 || AT_WORK);
  RULE(marker_goes_back, stamp == 0 || marked >= highest || AT_WORK);
  RULE(marker_before_removal, stamp == 0 || (objects & removed[marked]) == 0)
#endif
}

/* The effects of requests on the store. */
inline create(at, what, job, r, l) {
  if
  :: at < size -> ok = 0
  :: else ->
    RULE(job_ended_twice, end[job] == 0);
    kind[at] = what; who[at] = job; removed[at] = r; end[job] = at;
    if
    :: what == COMMIT ->
      RULE(replace_leaves_older_data, mode[job] != REPLACE || (snap[at - 1] & WITHIN(touched[job]) & ~(r)) == 0);
      RULE(fail_beside_data, mode[job] != FAIL || (snap[at - 1] & WITHIN(touched[job])) == 0);
      RULE(removes_what_is_not_its_own, (r & ~WITHIN(touched[job])) == 0 && (mode[job] == REPLACE || r == 0));
      snap[at] = (snap[at - 1] & ~(r)) | MINE(job);
#ifdef LISTS
      named[at] = l;
      RULE(list_missing, list[l] == r + 1);
#endif
    :: else -> snap[at] = snap[at - 1]
    fi;
    ever[at] = ever[at - 1] | snap[at] | removed[at];
    size++; ok = 1
  fi;
  check()
}

inline complete(f) {
  if
  :: pending & f -> pending = pending & ~(f); objects = objects | f
#ifdef FAULT_STORE_REVIVES
  :: else -> objects = objects | f
#else
  :: else
#endif
  fi;
  check()
}

inline abort_upload(f) { pending = pending & ~(f) }

inline delete(f) { objects = objects & ~(f); check() }

#ifdef MARKER
inline mark(was, upto, g, r) {
  if
  :: PRESENT && (marked != was || through != upto) -> ok = 0
  :: else ->
    marked = g; through = r; ok = 1;
#ifdef FAULT_SUCCESS_RESTORED
    present = 1;
#endif
    RULE(marker_goes_back, g >= highest);
    highest = g
  fi;
  check()
}
#endif

#ifdef DELETED_MARKER
/* Create-only, or on the condition of the ETag. */
inline write_marker(was, g, s) {
  if
  :: stamp != was -> ok = 0
  :: else ->
    marked = g; stamp = s; ok = 1;
    if :: g > highest -> highest = g :: else fi
  fi;
  check()
}

inline remove_marker(was) {
  if :: stamp == was && was != 0 -> stamp = 0; marked = 0 :: else fi;
  check()
}
#endif

#ifdef LISTS
inline keep(l, job, r) { list[l] = r + 1; owner[l] = job }
inline drop(l) {
  list[l] = 0;
  RULE(list_missing, !NAMED(l))
}
#endif

/* A listing of the log, which may lag; entries are believed only when they are read. */
inline look(n) {
  if
  :: n = size
  :: lag > 0 && size > 1 && mortal -> lag--; n = size - 1
  :: lag > 0 && size > 2 && mortal -> lag--; n = 1
  fi
}

proctype actor(byte part; byte j; byte me) {
  byte base, rest, f;
  bit ok;
#ifdef LISTS
  bit try, tried;
#endif
#ifdef MARKER
  byte m, t;
#endif
#ifdef DELETED_MARKER
  byte m, s, g;
#endif

again:
  atomic {
    rest = 0; f = 0;
    look(base);
    if
    :: COMMITTED(j, base) -> goto ended
    :: ABANDONED(j, base) -> if :: part == COMMITTER -> goto clean :: else -> goto undo fi
    :: else -> if :: part == ABORTER -> goto abandon :: else fi
    fi
  }
  /* Plan: the snapshot at the base in the touched partitions, and what lies there that nobody's. */
  atomic {
#ifdef FAULT_PLAN_BY_LISTING
    rest = objects & WITHIN(touched[j]) & ~MINE(j);
#else
    rest = snap[base - 1] & WITHIN(touched[j]);
    rest = rest | (objects & WITHIN(touched[j]) & ~ever[base - 1] & NOBODYS(base) & ~MINE(j));
#endif
    if
    :: mode[j] == APPEND -> rest = 0
    :: mode[j] == FAIL && rest != 0 -> rest = 0; goto refuse
    :: else
    fi
  }
#ifdef FAULT_SUCCESS_RESTORED
  atomic { if :: saved[j] == 0 && present -> saved[j] = marked + 1; present = 0; marked = 0; through = 0 :: else fi }
#endif
#ifdef LISTS
#ifdef FAULT_PLANS_OVERWRITTEN
#define ID j
#elif defined(FAULT_ONE_PLAN_ID)
#define ID me
#else
#define ID (me + PLANNERS * try)
#endif
  /* An id for each plan, not for each process: a late write of an earlier plan would damage a later one. */
  atomic { try = tried; tried = 1; SEND(keep(ID, j, rest), KEEP, ID, j, rest, 0, 0) }
#else
#define ID 0
#endif
#ifdef DELETED_MARKER
  /* The state moves, by compare-and-swap; the first process of the job notes the marker that is there, or the one
     that it remembers: the first. */
  atomic {
    if
    :: closed[j] -> if :: end[j] != 0 -> goto again :: part == RECOVERER && end[j] == 0 -> goto abandon :: else -> goto done fi
    :: !closed[j] && !begun[j] -> begun[j] = 1; state[j] = 1; if :: saved[j] = stamp; savedgen[j] = marked :: saved[j] = 1; s = 1 fi
    :: else
    fi
  }
#ifdef FAULT_MARKER_BY_GENERATION
  atomic { m = (marked < base -> stamp : 0) }
  atomic { if :: m != 0 -> SEND(remove_marker(m), REMOVE, m, 0, 0, 0, 0) :: else fi; m = 0 }
#else
  atomic { if :: saved[j] != 0 -> SEND(remove_marker(saved[j]), REMOVE, saved[j], 0, 0, 0, 0) :: else fi }
  /* It remembered another one than is there: the state moves again, and that one goes too. */
  atomic { if :: s == 1 && !closed[j] && stamp != 0 -> saved[j] = stamp; savedgen[j] = marked :: else -> s = 0 fi }
  atomic { if :: s == 1 -> SEND(remove_marker(saved[j]), REMOVE, saved[j], 0, 0, 0, 0); s = 0 :: else fi }
#endif
#endif
  /* Complete every upload. */
  f = MINE(j);
next_upload:
  atomic {
    SEND(complete(LOWEST(f)), COMPLETE, LOWEST(f), 0, 0, 0, 0);
    if
    :: objects & LOWEST(f) -> f = f & ~LOWEST(f)
    :: else -> rest = 0; f = 0; goto gone
    fi;
    if :: f != 0 -> goto next_upload :: else -> f = base fi
  }
  /* Create the entry at the head; every entry below it has been read. */
create_entry:
  atomic {
    SEND(create(f, COMMIT, j, rest, ID), CREATE, f, COMMIT, j, rest, ID);
    if
    :: ok -> goto ended
    :: else ->
      f++;
      if
      :: ENDED(j, f) -> goto again
#ifndef FAULT_NO_CONFLICT_CHECK
      :: !ENDED(j, f) && mode[j] == REPLACE && CONFLICT(j, base, f) -> goto again
      :: !ENDED(j, f) && mode[j] == FAIL && CONFLICT(j, base, f) -> goto refuse
#endif
      :: else -> goto create_entry
      fi
    fi
  }

gone:
  /* An upload is gone: another process has ended the job, or nobody can commit it any more. */
  atomic { look(base); if :: ENDED(j, base) -> goto again :: else -> goto abandon fi }

refuse:
  atomic { base = size; f = 0; rest = 0; if :: ENDED(j, base) -> goto again :: else fi }
abandon:
  atomic {
    f = 0; rest = 0; ok = 0;
#ifdef DELETED_MARKER
    closed[j] = 1; state[j] = 1
#endif
  }
#ifdef FAULT_UNDO_BEFORE_ABANDON
  goto undo;
#define UNDO clean
#else
#define UNDO undo
#endif
create_abandon:
  atomic {
    SEND(create(base, ABANDON, j, 0, 0), CREATE, base, ABANDON, j, 0, 0);
    if
    :: ok -> goto UNDO
    :: else ->
      base++;
      if
      :: COMMITTED(j, base) -> goto ended
      :: ABANDONED(j, base) -> goto UNDO
      :: else -> goto create_abandon
      fi
    fi
  }
undo:
  /* Each upload first, then its object: nobody can complete it again. */
  atomic { f = MINE(j); rest = 0; ok = 0 }
next_undo:
  atomic { SEND(abort_upload(LOWEST(f)), ABORT, LOWEST(f), 0, 0, 0, 0) }
  atomic {
    SEND(delete(LOWEST(f)), DELETE, LOWEST(f), 0, 0, 0, 0); f = f & ~LOWEST(f);
    if :: f != 0 -> goto next_undo :: else fi
  }
#ifdef FAULT_UNDO_BEFORE_ABANDON
  if :: !ENDED(j, base) -> goto create_abandon :: else fi;
#endif
#ifdef FAULT_SUCCESS_RESTORED
  atomic {
    if
    :: !present && saved[j] > 0 -> mark(0, 0, (saved[j] - 1), (saved[j] - 1))
    :: else
    fi
  }
#endif
#ifdef DELETED_MARKER
  /* Give the marker back: that of the newest commit, unless its job has not ended and will write it. If it is the
     one that this job took, its job has written it. */
  atomic { if :: !begun[j] -> goto clean :: else fi }
restore:
  atomic {
    look(base);
    base = base - 1;
    do :: base > 0 && kind[base] != COMMIT -> base-- :: else -> break od
  }
  atomic {
    if
#ifdef FAULT_MARKER_NOT_GIVEN_BACK
    :: base > 0 && record[who[base]] -> base = 0; goto clean
#else
    :: base > 0 && record[who[base]] && (saved[j] == 0 || savedgen[j] != base) -> base = 0; goto clean
#endif
    :: else
    fi
  }
next_restore:
  atomic {
    m = stamp;
#ifdef FAULT_MARKER_ONLY_IF_NONE
    if :: m != 0 -> goto clean :: else fi;
#elif defined(FAULT_MARKER_NOT_RENEWED)
    if :: m != 0 && marked >= base -> goto clean :: else fi;
#else
    if :: m != 0 && marked >= base && m != saved[j] -> goto clean :: else fi;
#endif
    stamps++; s = stamps
  }
  atomic {
    SEND(write_marker(m, base, s), MARK, m, base, s, 0, 0);
    if :: ok -> goto clean :: else -> goto next_restore fi
  }
#endif
  goto clean;

ended:
  /* The job has its commit. An abort is refused; everybody else finishes it. */
  atomic {
    base = 0; f = 0; rest = 0; ok = 0;
    if :: part == ABORTER -> goto clean :: else fi
  }
#ifdef MARKER
derive:
  atomic {
    look(base);
    /* A listing may lag behind what this process has read already: its own entry. */
    if :: base <= end[j] -> base = end[j] + 1 :: else fi;
    base = base - 1;
    do :: base > 0 && kind[base] != COMMIT -> base-- :: else -> break od
  }
  atomic {
    m = marked; t = through;
    if
#ifndef FAULT_MARKER_TRUSTS_LISTING
    :: m > base -> m = 0; t = 0; goto derive
#endif
    :: m == base && t == base -> goto clean
    :: else
    fi;
    rest = 0; f = t;
    do :: f < base -> f++; rest = rest | removed[f] :: else -> break od;
    f = 0;
#ifdef FAULT_MARKER_AFTER_OWN_REMOVALS
    rest = removed[end[j]];
#endif
#ifdef FAULT_MARKER_AFTER_REMOVAL
    goto removal
#else
    if :: m == base -> goto removal :: else fi
#endif
  }
  atomic {
    if
    :: rest == 0 -> SEND(mark(m, t, base, base), MARK, m, t, base, base, 0); if :: ok -> goto clean :: else -> goto derive fi
    :: else -> SEND(mark(m, t, base, t), MARK, m, t, base, t, 0); if :: ok -> m = base :: else -> goto derive fi
    fi
  }
removal:
#else
  atomic { rest = removed[end[j]] }
#endif
next_removal:
  atomic {
    if
    :: rest != 0 -> SEND(delete(LOWEST(rest)), DELETE, LOWEST(rest), 0, 0, 0, 0); rest = rest & ~LOWEST(rest); goto next_removal
    :: else
    fi
  }
#ifdef MARKER
  atomic {
    SEND(mark(m, t, base, base), MARK, m, t, base, base, 0);
    if :: ok -> goto clean :: else -> goto derive fi
  }
#endif
#ifdef DELETED_MARKER
  atomic { g = end[j] }
derive:
  atomic {
    m = stamp;
    if :: m != 0 && marked >= g -> goto written :: else fi;
    stamps++; s = stamps
  }
  atomic {
    SEND(write_marker(m, g, s), MARK, m, g, s, 0, 0);
    if :: ok :: else -> goto derive fi
  }
written:
  skip;
#endif
clean:
#ifdef DELETED_MARKER
  /* The staging goes, the state last; an abort that came too late leaves it to the committer. */
  atomic {
    if :: end[j] != 0 && part != (kind[end[j]] == COMMIT -> ABORTER : COMMITTER) -> state[j] = 0; record[j] = 0; check() :: else fi
  }
#endif
#ifdef LISTS
  /* Lists of an ended job that no entry names. */
  atomic { rest = 0; base = 0; f = 0; try = 0; tried = 0 }
next_list:
  atomic {
    do
    :: base < WRITERS && (list[base] == 0 || owner[base] != j || NAMED(base)) -> base++
    :: else -> break
    od;
    if
    :: base < WRITERS -> SEND(drop(base), DROP, base, 0, 0, 0, 0); base++; goto next_list
    :: else
    fi
  }
#endif
  goto done;
dead:
  atomic { crashed = 1; goto done }
done:
  atomic {
    running--; base = 0; rest = 0; f = 0; ok = 0;
#ifdef DELETED_MARKER
    m = 0; s = 0; g = 0
#endif
  }
}

/* Late effects. */
#if LATE > 0
proctype wire() {
  byte i;
  bit ok;
end_wire:
  do
  :: atomic {
      flying > 0 ->
      any(i);
      if
      :: net[i].op == CREATE -> create(net[i].a, net[i].b, net[i].c, net[i].d, net[i].e)
      :: net[i].op == COMPLETE -> complete(net[i].a)
      :: net[i].op == ABORT -> abort_upload(net[i].a)
      :: net[i].op == DELETE -> delete(net[i].a)
#ifdef MARKER
      :: net[i].op == MARK -> mark(net[i].a, net[i].b, net[i].c, net[i].d)
#elif defined(DELETED_MARKER)
      :: net[i].op == MARK -> write_marker(net[i].a, net[i].b, net[i].c)
      :: net[i].op == REMOVE -> remove_marker(net[i].a)
#endif
#ifdef LISTS
      :: net[i].op == KEEP -> keep(net[i].a, net[i].b, net[i].c)
      :: net[i].op == DROP -> drop(net[i].a)
#endif
      fi;
      landed(i); ok = 0
    }
  od
}
#endif

inline recover(j) {
  atomic { running++; run actor(RECOVERER, j, 4 + j) }
  running == 0
}

inline cast(n, part, j) {
  i = 0;
  do :: i < n -> running++; run actor(part, j, me); me++; i++ :: else -> break od
}

init {
  byte i, me;
  atomic {
    i = 0;
    do
    :: i < JOBS -> if :: mode[i] = APPEND :: mode[i] = REPLACE :: mode[i] = FAIL fi; i++
    :: else -> break
    od;
#ifdef MODE_A
    mode[0] = MODE_A; mode[1] = MODE_B; mode[2] = MODE_C;
#endif
#ifdef DELETED_MARKER
    i = 0;
    do :: i < JOBS -> record[i] = 1; i++ :: else -> break od;
#endif
    touched[0] = OLD;
    if :: touched[1] = OLD :: PARTS > 1 -> touched[1] = 1 :: PARTS > 1 -> touched[1] = 2 fi;
#if JOBS > 2
    touched[2] = OLD;
#endif
    if :: objects = OLD :: mode[0] == FAIL || mode[1] == FAIL -> objects = 0 fi;
    snap[0] = objects; ever[0] = objects;
    pending = MINE(0) | (COMMIT_B + ABORT_B > 0 -> MINE(1) : 0);
#if JOBS > 2
    pending = pending | MINE(2);
#endif
#ifdef STRANGERS
    if :: objects = objects | STRANGER :: true fi;
#endif
#if LATE > 0
    run wire();
#endif
    cast(COMMIT_A, COMMITTER, 0);
    cast(ABORT_A, ABORTER, 0);
    cast(COMMIT_B, COMMITTER, 1);
    cast(ABORT_B, ABORTER, 1);
#if JOBS > 2
    cast(1, COMMITTER, 2);
#endif
    i = 0; me = 0
  }
  running == 0;
  if
  :: crashed -> atomic { mortal = 0; late = 0; lag = 0 };
    recover(0);
    if :: COMMIT_B + ABORT_B > 0 -> recover(1) :: else fi;
#if JOBS > 2
    recover(2);
#endif
  :: else
  fi;
  atomic {
    flying == 0 ->
    RULE(job_not_ended, end[0] != 0 && (end[1] != 0 || COMMIT_B + ABORT_B == 0));
    RULE(upload_pending_at_rest, pending == 0);
#if defined(LISTS) && LATE == 0
    i = 0;
    do :: i < WRITERS -> RULE(list_left, list[i] == 0 || NAMED(i)); i++ :: else -> break od;
#endif
    RULE(objects_are_not_the_snapshot, (objects & ~STRANGER) == (snap[size - 1] & ~STRANGER));
#ifdef MARKER
    i = size - 1;
    do :: i > 0 && kind[i] != COMMIT -> i-- :: else -> break od;
    RULE(marker_not_newest, marked == i && through == i);
#elif defined(DELETED_MARKER)
    i = size - 1;
    do :: i > 0 && kind[i] != COMMIT -> i-- :: else -> break od;
    RULE(marker_not_newest, stamp != 0 && marked == i);
#endif
  }
}
