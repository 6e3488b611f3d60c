/* What the store holds, and what requests do to it. steps.pml includes this file; others say who runs. */
#include "common.pml"

#ifndef JOBS
#define JOBS 2
#endif
#ifndef ROLLBACKS
#define ROLLBACKS 0        /* rollbacks are jobs without files; their numbers follow those of the others */
#endif
#ifndef PARTS
#define PARTS 1            /* partitions; of two, a job's file 0 lies in the first and file 1 in the second */
#endif
#ifndef LENGTH
#define LENGTH (JOBS + ROLLBACKS + 6)
#endif
#ifndef COPIES
#define COPIES 0           /* older data that was copied here, with ids of jobs in its names */
#endif
#define NOBODY 15          /* the job of the first entry and of a release */

/* Sets of files are bits: older data, a file in each partition; an object of another program; three files of each job, of
   which the last is of a task attempt that does not count. */
#define OLD         (PARTS > 1 -> 3 : 1)
#define STRANGER    4
#define SHIFT(j, s) ((s) << (3 * (j) + 3))
#define MINE(j)     SHIFT(j, 7)
#define LOWEST(set) ((set) & (-(set)))
#define SECOND      (PARTS > 1 -> 2 | SHIFT(0, 2) | SHIFT(1, 2) | SHIFT(2, 2) : 0)
#define WITHIN(set) ((((set) & SECOND) != 0 -> SECOND : 0) | (((set) & ~SECOND) != 0 -> ~SECOND : 0))

/* Kinds of entries, and modes of jobs. */
#define ABANDON   0
#define COMMIT    1
#define RELEASE   2

#define APPEND    0
#define REPLACE   1
#define FAIL      2
#define RESTORE   3        /* a rollback */

/* Requests, which may land late. */
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

/* The log. `table` is the fold up to an entry, `left` what a commit took from it. */
byte size;                 /* number of the newest entry */
byte kind[LENGTH];
byte who[LENGTH];
short table[LENGTH];
short left[LENGTH];
byte end[JOBS + ROLLBACKS];   /* a job's entry; 0 while it has none */
byte newest;               /* the newest commit */
short named;               /* files that any entry names */
short freed;               /* files that entries let go */
#ifdef RETENTION
short retained;            /* what left the table and stays in place */
short freeable;            /* what the newest release let go; what earlier ones did is forgotten */
#define IN_PLACE (retained | freeable)
#else
#define IN_PLACE 0
#endif

short objects;
short pending;             /* uploads that are neither completed nor aborted */
short uploaded;            /* keys that an upload was created for */
short second;              /* second uploads of a key, which no record knows: their creation took effect late, or twice */
byte record[JOBS + ROLLBACKS];   /* job.json: its base plus 1; 0 without it */
byte sealed[JOBS + ROLLBACKS];   /* sealed.json: which files of the job count; 0 without it */
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

byte mode[JOBS + ROLLBACKS];
byte retains;              /* bits of jobs: what they take stays in place until a release */
bit patience;              /* everybody is done: a sweep ends open jobs */
hidden byte ok;            /* the answer to the request that was sent last */

bit table_file_missing, retained_file_missing, job_ended_twice, file_entered_twice, replace_leaves_older_data, fail_beside_data;
bit change_unseen, takes_unasked, aborted_file_in_table, released_file_referenced, deleted_unreleased, living_upload_aborted, commit_taken_back;
bit marker_goes_back, version_names_missing_file, version_missing, living_job_ended_by_sweep;
bit job_not_ended, upload_left, staging_left, record_left, receipt_missing, objects_are_not_the_table, marker_not_newest;

#define HAS_RECEIPT(j) (receipts & (1 << (j)))
#define RETAINS(j)     (retains & (1 << (j)))
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

/* An entry, create-only at its number. `adds` are those of the job's files that enter the table.
   A rollback `takes` back nothing newer than a generation, and `adds` all of another one; a release `takes` files. */
inline create(at, what, job, takes, adds) {
  if
  :: at <= size -> ok = 0
  :: else ->
    kind[at] = what; who[at] = job; table[at] = table[size];
    if
#ifdef RETENTION
    :: what == RELEASE -> freeable = (takes) & retained; freed = freed | freeable; retained = retained & ~freeable
#endif
    :: what == ABANDON -> RULE(job_ended_twice, end[job] == 0); end[job] = at
    :: what == COMMIT ->
      RULE(job_ended_twice, end[job] == 0);
      if
#ifdef RETENTION
      :: mode[job] == RESTORE ->
        table[at] = table[adds];
        RULE(commit_taken_back, newest == (takes))
      :: mode[job] != RESTORE ->
#else
      :: true ->
#endif
        table[at] = (table[size] & ~(takes)) | SHIFT(job, adds);
        RULE(file_entered_twice, (SHIFT(job, adds) & named) == 0);
        RULE(replace_leaves_older_data, mode[job] != REPLACE || (table[at] & WITHIN(SHIFT(job, adds))) == SHIFT(job, adds));
#ifdef SEEN
        RULE(change_unseen, (job) != 0 || newest <= SEEN);
#endif
        RULE(fail_beside_data, mode[job] != FAIL || (table[size] & WITHIN(SHIFT(job, adds))) == 0);
        RULE(takes_unasked, mode[job] == REPLACE || (table[size] & ~table[at]) == 0);
        left[at] = (takes) & ~table[size];       /* other programs' objects */
        named = named | SHIFT(job, adds)
      fi;
      left[at] = left[at] | (table[size] & ~table[at]);
      end[job] = at; newest = at;
#ifdef RETENTION
      retained = retained & ~table[at];
      if :: RETAINS(job) -> retained = retained | left[at] :: else -> freed = freed | left[at] fi
#else
      freed = freed | left[at]
#endif
    fi;
    size = at; ok = 1;
    RULE(released_file_referenced, (table[at] & freed) == 0)
  fi;
  check()
}

/* begin_log: the first entry lists the data that is there, or nothing. */
inline begin_log(set) {
  if
  :: size == 0 -> size = 1; kind[1] = COMMIT; who[1] = NOBODY; newest = 1; table[1] = set; named = set
  :: else
  fi
}

inline upload(f) {
  if
  :: uploaded & (f) -> second = second | (f)
  :: else -> uploaded = uploaded | (f); pending = pending | (f)
  fi
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
inline stage(f) { staged = staged | (f) }
inline unstage(set) { staged = staged & ~(set) }
inline set_up(j, head) { if :: record[j] == 0 -> record[j] = (head) + 1; ok = 1 :: else -> ok = 0 fi }
inline seal(j, files) { if :: sealed[j] == 0 -> sealed[j] = files; ok = 1 :: else -> ok = 0 fi }

#define SEALED 1
#define RECORD 2
inline drop(what, j) {
  if
  :: what == SEALED -> sealed[j] = 0
  :: what == RECORD -> record[j] = 0
  fi
}

#if LATE > 0
proctype wire() {
  byte i;
end_wire:
  do
  :: atomic {
      flying > 0 ->
      any(i);
      if
      :: net[i].op == CREATE -> create(net[i].a, net[i].b, net[i].d, net[i].c, net[i].e)
      :: net[i].op == COMPLETE -> complete(net[i].c)
      :: net[i].op == STOP -> abort_upload(net[i].c)
      :: net[i].op == DELETE -> delete(net[i].c)
      :: net[i].op == MARK -> mark(net[i].a, net[i].b)
      :: net[i].op == RECEIPT -> write_receipt(net[i].a)
#ifdef VERSIONS
      :: net[i].op == PUBLISH -> publish(net[i].a)
#endif
      :: net[i].op == UNSTAGE -> unstage(net[i].c)
      :: net[i].op == DROP -> drop(net[i].a, net[i].b)
      :: net[i].op == BEGIN -> begin_log(net[i].c)
      :: net[i].op == SET_UP -> set_up(net[i].a, net[i].b)
      :: net[i].op == UPLOAD -> upload(net[i].c)
      :: net[i].op == STAGE -> stage(net[i].c)
      :: net[i].op == SEAL -> seal(net[i].a, net[i].b)
      fi;
      landed(i)
    }
  od
}
#define START_WIRE run wire()
#else
#define START_WIRE skip
#endif

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
