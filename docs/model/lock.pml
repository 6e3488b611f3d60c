/* The lock of jobs with fixed names, as the code has it, beside a job with unique names. F replaces the partition under
   key K, which was there before; R replaces it with a file of its own, U. Nothing in K's name says whose it is. */
#include "common.pml"

#ifndef COMMIT_F
#define COMMIT_F 1
#endif
#ifndef COMMIT_R
#define COMMIT_R 1
#endif

#define F 0
#define R 1

/* What lies at K: nothing, what was there before, or what F writes. */
#define NONE 0
#define OLD  1
#ifdef FAULT_SAME_ETAG
#define NEW  1
#else
#define NEW  2
#endif

#define CREATE   1
#define COMPLETE 2
#define DELETE   3

#define LENGTH 4
byte size = 1;
byte snap_k[LENGTH];
bit snap_u[LENGTH];
byte end[2];
byte removed[2];           /* what each job's entry removes: the ETag of K, or U */
bit published;             /* F has overwritten K */

byte k = OLD;
bit u;
bit pending[2];
bit locked;                /* by F, whichever of its processes */

bit snapshot_file_missing, job_ended_twice, replace_leaves_older_data, job_not_ended, objects_are_not_the_snapshot;
bit upload_pending_at_rest;

#define ENDED(j, n) (end[j] != 0 && end[j] < (n))

inline check() {
  RULE(snapshot_file_missing, (!snap_u[size - 1] || u) && (snap_k[size - 1] == NONE || k == snap_k[size - 1] || (published && k == NEW)))
}

inline create(at, j, gone) {
  if
  :: at < size -> ok = 0
  :: else ->
    RULE(job_ended_twice, end[j] == 0);
    end[j] = at; removed[j] = gone;
    if
    :: j == F ->
      RULE(replace_leaves_older_data, !snap_u[at - 1] || gone);
      snap_k[at] = NEW; snap_u[at] = 0
    :: else ->
      RULE(replace_leaves_older_data, snap_k[at - 1] == NONE || snap_k[at - 1] == gone);
      snap_k[at] = NONE; snap_u[at] = 1
    fi;
    size++; ok = 1
  fi;
  check()
}

inline complete(j) {
  if
  :: pending[j] && j == F -> pending[j] = 0; k = NEW; published = 1
  :: pending[j] && j == R -> pending[j] = 0; u = 1
  :: else
  fi;
  check()
}

/* On the condition of the ETag. */
inline delete(j, gone) {
  if
  :: j == F && gone -> u = 0
  :: j == R && gone != NONE && k == gone -> k = NONE
  :: else
  fi;
  check()
}

proctype committer(byte j) {
  byte base, at, gone;
  bit ok;

again:
  atomic { if :: ENDED(j, size) -> goto ended :: else fi }
  atomic { if :: j == F -> locked = 1 :: else fi }
plan:
  atomic { base = size; ok = 0; if :: ENDED(j, size) -> goto ended :: else fi }
  atomic {
    if
    :: j == F -> gone = (u && ENDED(R, base))    /* U says whose it is: an unfinished job's is left */
    :: else -> gone = k
    fi;
    at = base
  }
#ifndef FAULT_REPLACE_IGNORES_LOCK
  /* It waits, or comes again: the holder's job is ended first. */
  atomic { if :: j == R && gone != NONE && locked -> goto done :: else fi }
#endif
  atomic { SEND(complete(j), COMPLETE, j, 0, 0, 0, 0) }
create_entry:
  atomic {
    SEND(create(at, j, gone), CREATE, at, j, gone, 0, 0);
    if
    :: ok -> goto ended
    :: else ->
      at++;
      if
      :: ENDED(j, at) -> goto ended
      :: !ENDED(j, at) && end[1 - j] >= base && end[1 - j] < at -> goto plan
      :: else -> goto create_entry
      fi
    fi
  }
ended:
  atomic { SEND(delete(j, removed[j]), DELETE, j, removed[j], 0, 0, 0) }
  atomic { if :: j == F -> locked = 0 :: else fi }
  goto done;
dead:
  atomic { crashed = 1; goto done }
done:
  atomic { running--; base = 0; at = 0; gone = 0; ok = 0 }
}

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
      :: net[i].op == CREATE -> create(net[i].a, net[i].b, net[i].c)
      :: net[i].op == COMPLETE -> complete(net[i].a)
      :: net[i].op == DELETE -> delete(net[i].a, net[i].b)
      fi;
      landed(i); ok = 0
    }
  od
}
#endif

inline cast(n, j) {
  i = 0;
  do :: i < n -> running++; run committer(j); i++ :: else -> break od
}

init {
  byte i;
  atomic {
    snap_k[0] = OLD; pending[F] = 1; pending[R] = 1;
#if LATE > 0
    run wire();
#endif
    cast(COMMIT_F, F);
    cast(COMMIT_R, R);
    i = 0
  }
  running == 0;
  /* The lock's holder is ended first. */
  atomic { mortal = 0; late = 0; running = 1; run committer(F) }
  running == 0;
  atomic { running = 1; run committer(R) }
  running == 0;
  atomic {
    flying == 0 ->
    RULE(job_not_ended, end[F] != 0 && end[R] != 0);
    RULE(upload_pending_at_rest, !pending[F] && !pending[R]);
    RULE(objects_are_not_the_snapshot, k == snap_k[size - 1] && u == snap_u[size - 1])
  }
}
