/* The log alone decides: what the store holds, what requests do to it, and the steps that end a job.
   The files log_only_*.pml include this one and say who runs. A step is named after the function that takes it;
   a listing and the first request about what it shows are one step. */
#include "common.pml"

#ifndef JOBS
#define JOBS 2
#endif
#ifndef PARTS
#define PARTS 1            /* partitions; of two, a job's file 0 lies in the first and file 1 in the second */
#endif
#ifndef LENGTH
#define LENGTH (JOBS + 2)
#endif
#ifndef COPIES
#define COPIES 0           /* older data that was copied here, with ids of jobs in its names */
#endif
#define NOBODY 15          /* the job of the first entry and of a release */
#define ROLLER JOBS        /* the job of a rollback */

/* Sets of files are bits: older data, a file in each partition; an object of another program; three files of each job, of
   which the last is of a task attempt that does not count. */
#define OLD         (PARTS > 1 -> 3 : 1)
#define STRANGER    4
#define SHIFT(j, s) ((s) << (3 * (j) + 3))
#define MINE(j)     SHIFT(j, 7)
#define LOWEST(set) ((set) & (-(set)))
#define SECOND      (PARTS > 1 -> 2 | SHIFT(0, 2) | SHIFT(1, 2) | SHIFT(2, 2) : 0)
#define WITHIN(set) ((((set) & SECOND) != 0 -> SECOND : 0) | (((set) & ~SECOND) != 0 -> ~SECOND : 0))

/* Kinds of entries, modes of jobs, parts of processes, and requests, which may land late. */
#define ABANDON   0
#define COMMIT    1
#define RELEASE   2

#define APPEND    0
#define REPLACE   1
#define FAIL      2

#define COMMITTER 0
#define ABORTER   1
#define RECOVERER 2
#define SWEEPER   3

#define CREATE    1
#define COMPLETE  2
#define STOP      3        /* abort an upload */
#define DELETE    4
#define MARK      5
#define RECEIPT   6
#define PUBLISH   7
#define DROP      8        /* delete sealed.json or job.json */
#define BEGIN     9
#define SET_UP   10
#define UPLOAD   11
#define STAGE    12
#define SEAL     13
#define UNSTAGE  14        /* delete pendingsets */

/* The log. `table` is the fold up to an entry, `left` what a commit took or a release frees. */
byte size;                 /* number of the newest entry */
byte kind[LENGTH];
byte who[LENGTH];
short table[LENGTH];
short left[LENGTH];
byte end[JOBS + 1];        /* a job's entry; 0 while it has none */
byte newest;               /* the newest commit */
short named;               /* files that any entry names */
short freed;               /* files that entries let go */

short objects;
short pending;             /* uploads that are neither completed nor aborted */
short second;              /* second uploads of a key, which no record knows: their creation took effect late, or twice */
byte record[JOBS + 1];     /* job.json: its base plus 1; 0 without it */
byte sealed[JOBS + 1];     /* sealed.json: which files of the job count; 0 without it */
short staged;              /* pendingsets */
byte receipts;             /* bits of jobs */
byte marked;               /* the generation that _SUCCESS names; it stands for the ETag too, because none comes twice */
byte highest;              /* the highest that it ever named */
#ifdef VERSIONS
byte version = 1;          /* the newest published version */
#endif
#ifdef FAULT_STORE_REVIVES
short completed;
#endif

byte mode[JOBS + 1];
byte retains;              /* bits of jobs: what they take stays in place until a release */
bit patience;              /* everybody is done: a sweep ends open jobs */
hidden byte ok;             /* the answer to the request that was sent last */

bit table_file_missing, retained_file_missing, job_ended_twice, file_entered_twice, replace_leaves_older_data, fail_beside_data;
bit takes_unasked, aborted_file_in_table, released_file_referenced, deleted_unreleased, living_upload_aborted;
bit marker_goes_back, version_names_missing_file, version_missing, living_job_ended_by_sweep;
bit job_not_ended, upload_left, staging_left, record_left, receipt_missing, objects_are_not_the_table, marker_not_newest;

#define HAS_RECEIPT(j) (receipts & (1 << (j)))
#define IS(j, f, state) ((MINE(j) & (f)) != 0 && (state))
#define ENDED(j)     (end[j] != 0)
#define ABANDONED(j) (end[j] != 0 && kind[end[j]] == ABANDON)
#if JOBS == 1
#define OF_ENDED(f)     IS(0, f, ENDED(0))
#define OF_OPEN(f)      IS(0, f, !ENDED(0))
#define OF_ABANDONED(f) IS(0, f, ABANDONED(0))
#elif JOBS == 2
#define OF_ENDED(f)     (IS(0, f, ENDED(0)) || IS(1, f, ENDED(1)))
#define OF_OPEN(f)      (IS(0, f, !ENDED(0)) || IS(1, f, !ENDED(1)))
#define OF_ABANDONED(f) (IS(0, f, ABANDONED(0)) || IS(1, f, ABANDONED(1)))
#else
#define OF_ENDED(f)     (IS(0, f, ENDED(0)) || IS(1, f, ENDED(1)) || IS(2, f, ENDED(2)))
#define OF_OPEN(f)      (IS(0, f, !ENDED(0)) || IS(1, f, !ENDED(1)) || IS(2, f, !ENDED(2)))
#define OF_ABANDONED(f) (IS(0, f, ABANDONED(0)) || IS(1, f, ABANDONED(1)) || IS(2, f, ABANDONED(2)))
#endif

inline check() {
  RULE(table_file_missing, (table[size] & ~objects) == 0);
  RULE(retained_file_missing, (named & ~freed & ~objects) == 0);
  RULE(aborted_file_in_table, !OF_ABANDONED(table[size] & ~COPIES));
#ifdef VERSIONS
  RULE(version_names_missing_file, (table[version] & ~objects) == 0)
#endif
}

/* The effects of requests. */

/* An entry, create-only at its number. `adds` are those of the job's files that enter the table. */
inline create(at, what, job, takes, adds) {
  if
  :: at <= size -> ok = 0
  :: else ->
    kind[at] = what; who[at] = job; left[at] = takes; table[at] = table[size];
    if
    :: what == RELEASE -> freed = freed | (takes)
    :: what == ABANDON -> RULE(job_ended_twice, end[job] == 0); end[job] = at
    :: what == COMMIT ->
      RULE(job_ended_twice, end[job] == 0);
      table[at] = (table[size] & ~(takes)) | SHIFT(job, adds);
      RULE(file_entered_twice, (SHIFT(job, adds) & named) == 0);
      RULE(replace_leaves_older_data, mode[job] != REPLACE || (table[at] & WITHIN(SHIFT(job, adds))) == SHIFT(job, adds));
      RULE(fail_beside_data, mode[job] != FAIL || (table[size] & WITHIN(SHIFT(job, adds))) == 0);
      RULE(takes_unasked, mode[job] == REPLACE || (table[size] & ~table[at]) == 0);
      end[job] = at; newest = at;
      freed = freed | ((retains & (1 << job)) -> (takes) & ~named : (takes));
      named = named | SHIFT(job, adds)
    fi;
    size = at; ok = 1;
    RULE(released_file_referenced, (table[at] & freed) == 0)
  fi;
  check()
}

inline complete(f) {
  if
  :: pending & (f) ->
    pending = pending & ~(f); objects = objects | (f);
#ifdef FAULT_STORE_REVIVES
    completed = completed | (f)
  :: !(pending & (f)) && (completed & (f)) -> objects = objects | (f)
#endif
  :: else
  fi
}

inline abort_upload(f) {
  RULE(living_upload_aborted, !OF_OPEN((pending | second) & (f)));
  pending = pending & ~(f); second = second & ~(f)
}

inline delete(f) {
  RULE(deleted_unreleased, (objects & (f) & ~freed) == 0 || OF_ABANDONED(f));
  objects = objects & ~(f);
  check()
}

/* `_SUCCESS`, by compare-and-swap. */
inline mark(was, g) {
  if
  :: marked != was -> ok = 0
  :: else -> marked = g; ok = 1; RULE(marker_goes_back, g >= highest); highest = g
  fi
}

#ifdef VERSIONS
inline publish(n) {
  if :: version + 1 == n -> version = n :: else fi;
  check()
}
#endif

inline write_receipt(j) { receipts = receipts | (1 << (j)) }

inline unstage(set) { staged = staged & ~(set) }

#define SEALED 1
#define RECORD 2
inline drop(what, j) {
  if
  :: what == SEALED -> sealed[j] = 0
  :: what == RECORD -> record[j] = 0
  fi
}

/* What a commit takes at a head: the table's files in its partitions, and objects without a job's id in their names that
   are neither in the table nor retained. */
#ifdef FAULT_RETAINED_IS_UNOWNED
#define UNOWNED (objects & (OLD | STRANGER) & ~table[head])
#else
#define UNOWNED (objects & (OLD | STRANGER) & (~named | freed))
#endif
#ifdef FAULT_TAKES_BY_LISTING
#define TAKEN(j, files) (objects & WITHIN(SHIFT(j, files)) & ~MINE(j))
#elif defined(FAULT_TAKES_FIRST_PARTITION)
#define TAKEN(j, files) ((table[head] | UNOWNED) & WITHIN(SHIFT(j, files)) & ~SECOND)
#else
#define TAKEN(j, files) ((table[head] | UNOWNED) & WITHIN(SHIFT(j, files)))
#endif

/* begin_log: the first entry lists the data that is there, or nothing. */
inline begin_log(set) {
  if
  :: size == 0 -> size = 1; kind[1] = COMMIT; who[1] = NOBODY; newest = 1; table[1] = set; named = set
  :: else
  fi
}
#ifdef FAULT_EMPTY_WITHOUT_FIRST_ENTRY
#define BEGIN_LOG(set) if :: set != 0 -> SEND(begin_log(set), BEGIN, 0, 0, set, 0, 0); set = 0 :: else fi
#else
#define BEGIN_LOG(set) SEND(begin_log(set), BEGIN, 0, 0, set, 0, 0); set = 0
#endif

/* append: whoever creates an entry first writes the receipt, and the version, of the newest one. */
#ifdef FAULT_NEXT_WITHOUT_RECEIPT
#define BEFORE_ENTRY
#else
#define BEFORE_ENTRY atomic { \
  if \
  :: who[head] != NOBODY && !HAS_RECEIPT(who[head]) -> \
    SEND(write_receipt(who[head]), RECEIPT, who[head], 0, 0, 0, 0) \
  :: else \
  fi }
#endif
#if defined(VERSIONS) && !defined(FAULT_NEXT_WITHOUT_VERSION)
#define VERSION_OF(n) atomic { if :: version < n -> SEND(publish(n), PUBLISH, n, 0, 0, 0, 0) :: else fi }
#else
#define VERSION_OF(n)
#endif

/* A process that ends a job: commit, abort, the same again after a death, or a sweep. */
proctype ender(byte part; byte j) {
  byte base;               /* that of job.json, plus 1; without a record the head that was read first */
  byte head, was;
  bit known;               /* there is a record */
  byte files;
  short takes;

#ifdef SWEEPS
  if :: part == SWEEPER -> goto sweep :: else fi;
#endif
#ifdef FRESH
  atomic { if :: part == ABORTER && size == 0 -> takes = objects :: else -> goto find_job fi }
  atomic { BEGIN_LOG(takes) }
#endif
find_job:
  atomic { base = record[j]; known = base != 0 }
#ifdef FAULT_UNDO_BEFORE_ABANDON
  if :: part == ABORTER -> goto abort_pending :: else fi;
#endif
#ifdef FAULT_RECEIPT_BEFORE_HEAD
  atomic { if :: !known && HAS_RECEIPT(j) -> goto ended :: else fi }
#endif
read_log:
  atomic {
    head = size;
    if :: known :: else -> base = head fi;
    if
    :: end[j] != 0 && end[j] >= base -> goto ended
    :: else ->
      if
      :: known && (part == ABORTER || (part == RECOVERER && sealed[j] == 0)) -> goto abandon
      :: known && part != ABORTER && (part != RECOVERER || sealed[j] != 0) -> goto load_seal
      :: else
      fi
    fi
  }
#ifdef FAULT_RECEIPT_BEFORE_HEAD
  if :: part == COMMITTER -> goto done :: else -> goto abandon fi;
#endif
find_end:
  /* Without a record the newest entry first, then the receipt. */
  atomic {
    if
    :: HAS_RECEIPT(j) -> goto ended
    :: !HAS_RECEIPT(j) && part == COMMITTER -> goto done
    :: else -> goto abandon
    fi
  }
load_seal:
  atomic {
    files = sealed[j];
    if
    :: files == 0 -> head = size; if :: end[j] != 0 && end[j] >= base -> goto ended :: else -> goto done fi
    :: else
    fi;
    /* Mode fail is judged before anything is published: the job stays open. It is judged again at each try. */
    if
    :: mode[j] == FAIL && TAKEN(j, files) != 0 ->
      crashed = 1; files = 0;
      if :: part == RECOVERER -> goto abandon :: else -> goto done fi
    :: else
    fi;
    takes = SHIFT(j, files)
  }
#ifdef FAULT_DELETE_BEFORE_ENTRY
  atomic { if :: mode[j] == REPLACE -> SEND(delete(LOWEST(table[head])), DELETE, 0, 0, LOWEST(table[head]), 0, 0) :: else fi }
#endif
complete_uploads:
  atomic {
    SEND(complete(LOWEST(takes)), COMPLETE, 0, 0, LOWEST(takes), 0, 0);
    if
    :: objects & LOWEST(takes) -> takes = takes & ~LOWEST(takes)
    :: else -> takes = 0; files = 0; goto abandon
    fi;
    if :: takes != 0 -> goto complete_uploads :: else fi
  }
end_job:
  BEFORE_ENTRY;
  VERSION_OF(head);
decide:
  atomic {
    takes = 0;
    if
    :: mode[j] == APPEND
    :: mode[j] == REPLACE -> takes = TAKEN(j, files)
#ifdef FAULT_FAIL_JUDGED_ONCE
    :: mode[j] == FAIL
#else
    :: mode[j] == FAIL -> if :: TAKEN(j, files) != 0 -> files = 0; goto abandon :: else fi
#endif
    fi
  }
create_commit:
  atomic {
    SEND(create(head + 1, COMMIT, j, takes, files), CREATE, head + 1, COMMIT, takes, j, files);
    head = size;
    if
    :: end[j] != 0 && end[j] >= base -> goto ended
#ifdef FAULT_TAKEN_ONCE
    :: else -> goto create_commit
#else
    :: else -> goto end_job
#endif
    fi
  }

abandon:
  BEFORE_ENTRY;
  VERSION_OF(head);
  atomic {
    RULE(living_job_ended_by_sweep, part != SWEEPER || patience || record[j] == 0 || end[j] != 0);
    SEND(create(head + 1, ABANDON, j, 0, 0), CREATE, head + 1, ABANDON, 0, j, 0);
    head = size;
    if :: end[j] != 0 && end[j] >= base -> goto ended :: else -> goto abandon fi
  }

ended:
  atomic {
    base = 0; head = 0; known = 0; files = 0; takes = 0;
    if
    :: kind[end[j]] == ABANDON -> goto undo
    :: kind[end[j]] == COMMIT && part == ABORTER -> goto done
    :: else -> takes = left[end[j]] & ((retains & (1 << j)) -> STRANGER & freed : ~0)
    fi
  }

finish:
#ifndef FAULT_VERSION_AFTER_DELETIONS
  VERSION_OF(end[j]);
#endif
#ifdef FAULT_MARKER_DELETED
  atomic { if :: marked < end[j] -> was = marked :: else fi }
  atomic { if :: marked == was -> marked = 0 :: else fi }
#endif
  if :: takes == 0 -> goto deleted :: else fi;
delete_objects:
  atomic {
    SEND(delete(LOWEST(takes)), DELETE, 0, 0, LOWEST(takes), 0, 0);
    takes = takes & ~LOWEST(takes);
    if :: takes != 0 -> goto delete_objects :: else fi
  }
deleted:
#ifdef FAULT_VERSION_AFTER_DELETIONS
  VERSION_OF(end[j]);
#endif
write_success:
  atomic {
    was = marked;
#ifndef FAULT_MARKER_OVER_NEWER
    if :: was >= end[j] -> was = 0; goto undo :: else fi
#endif
  }
  atomic {
    SEND(mark(was, end[j]), MARK, was, end[j], 0, 0, 0);
    was = 0;
    if :: ok :: else -> goto write_success fi
  }

undo:
  /* Here finish goes on too: the receipt before uploads are listed, so what a task attempt uploads later finds it. */
  atomic { if :: !HAS_RECEIPT(j) -> SEND(write_receipt(j), RECEIPT, j, 0, 0, 0, 0) :: else fi }
#ifdef FAULT_OBJECTS_BEFORE_UPLOADS
  goto published;
#endif
abort_pending:
  atomic {
    takes = (pending | second) & MINE(j);
    if
    :: takes != 0 -> SEND(abort_upload(LOWEST(takes)), STOP, 0, 0, LOWEST(takes), 0, 0); takes = 0; goto abort_pending
    :: else
    fi
  }
#ifdef FAULT_OBJECTS_BEFORE_UPLOADS
  goto clean;
#endif
published:
  /* Objects after uploads: else a late completion brings one back. None was completed of a job that was never sealed. */
  atomic {
    if
    :: kind[end[j]] == ABANDON && sealed[j] != 0 ->
#ifdef FAULT_UNDO_BY_NAME
      takes = objects & MINE(j)
#else
      takes = objects & MINE(j) & ~named
#endif
    :: else
    fi;
    if
    :: takes != 0 -> SEND(delete(LOWEST(takes)), DELETE, 0, 0, LOWEST(takes), 0, 0); takes = 0; goto published
    :: else
    fi
  }
#ifdef FAULT_OBJECTS_BEFORE_UPLOADS
  goto abort_pending;
#endif
clean:
  /* The record goes last: as long as it is there, the job is found among those to be finished. */
  atomic {
    takes = staged & MINE(j);
    if
    :: takes != 0 -> SEND(unstage(takes), UNSTAGE, 0, 0, takes, 0, 0)
    :: takes == 0 && sealed[j] != 0 -> SEND(drop(SEALED, j), DROP, SEALED, j, 0, 0, 0)
    :: takes == 0 && sealed[j] == 0 && record[j] != 0 -> SEND(drop(RECORD, j), DROP, RECORD, j, 0, 0, 0)
    :: else -> goto done
    fi;
    takes = 0; goto clean
  }

#ifdef SWEEPS
sweep:
  /* What is there first, then job.json by its key, then the log, then the receipt. */
#ifdef FAULT_SWEEP_LISTS_RECORDS_FIRST
  atomic { base = record[j]; known = base != 0 }
  atomic { takes = (pending | second | staged | objects) & MINE(j); files = sealed[j]; if :: !takes && !files && !known -> goto done :: else fi }
#else
  atomic { takes = (pending | second | staged | objects) & MINE(j); files = sealed[j]; if :: !takes && !files && !record[j] -> goto done :: else fi }
  atomic { base = record[j]; known = base != 0 }
#endif
  atomic {
    head = size;
    if :: head == 0 -> goto done :: else fi;                  /* no log: no job was set up */
    if :: known :: else -> base = head fi;
    if :: end[j] != 0 && end[j] >= base -> goto ended :: else fi;
#ifndef FAULT_UNDO_BY_NAME
    if :: !known && !files && (takes & ~(objects & named)) == 0 -> goto done :: else fi;
#endif
    takes = 0; files = 0
  }
  atomic {
    if
    :: HAS_RECEIPT(j) -> goto ended
    :: !HAS_RECEIPT(j) && known && !patience -> goto done     /* it lives */
#ifdef FAULT_SWEEP_WITHOUT_ENTRY
    :: !HAS_RECEIPT(j) && !known -> goto abort_pending
#endif
    :: else -> goto abandon
    fi
  }
#endif

dead:
  crashed = 1;
done:
  atomic { running--; base = 0; head = 0; was = 0; known = 0; files = 0; takes = 0 }
}

/* At rest, when everybody is done and all has landed. */
inline at_rest(j) {
  RULE(job_not_ended, end[j] != 0);
  RULE(upload_left, !OF_ENDED((pending | second) & MINE(j)));
  RULE(staging_left, !OF_ENDED(staged & MINE(j)));
  RULE(record_left, record[j] == 0 && sealed[j] == 0);
  RULE(receipt_missing, HAS_RECEIPT(j) || who[size] == j)
}
inline table_at_rest() {
  RULE(objects_are_not_the_table, (objects & ~(STRANGER & ~freed)) == (named & ~freed));
  RULE(marker_not_newest, who[newest] == NOBODY || marked == newest);
#ifdef VERSIONS
  RULE(version_missing, version >= newest)
#endif
}
