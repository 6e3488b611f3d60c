/* Setting a job up twice, beside its writers, its commit and its abort: what an ended job leaves behind.
   Each setup is followed by a worker of its own, which uploads a file; one committer, one aborter. */
#include "common.pml"

#ifndef SETUPS
#define SETUPS 2
#endif
#ifndef ABORTS
#define ABORTS 1
#endif
#ifndef COMMITS
#define COMMITS 1
#endif

#define COMMIT  1
#define ABANDON 2

#define RECORD   1
#define UPLOAD   2
#define ABORT    3
#define WITHDRAW 4
#define CREATE   5
#define DELETE   6

byte ended;                /* the job's entry, 0 where it has none */
byte record;               /* the job's record: the nonce of who wrote it, 0 where there is none */
byte uploads;              /* pending, a bit for each worker */
byte aborted;              /* uploads that are gone for good */
bit removed;               /* what the job replaced is deleted */

bit job_ended_twice, record_of_living_job_removed, record_left, upload_left, removal_left;

inline create_record(n) { if :: record == 0 -> record = n; ok = 1 :: else -> ok = 0 fi }

/* The record goes if it is still the one that was read. */
inline withdraw(n) {
  if
  :: record == n -> record = 0
  :: else
  fi
}

inline create_upload(n) { if :: aborted & (1 << n) :: else -> uploads = uploads | (1 << n) fi }

inline abort_upload(n) { if :: uploads & (1 << n) -> uploads = uploads & ~(1 << n); aborted = aborted | (1 << n) :: else fi }

inline create(what) {
  if
  :: ended != 0 -> ok = 0
  :: else -> ended = what; ok = 1
  fi
}

proctype setup(byte n) {
  bit ok;

#ifdef FAULT_SETUP_LOOKS_BEFORE
  atomic { if :: ended != 0 -> goto done :: else fi }
#endif
  atomic { SEND(create_record(n), RECORD, n, 0, 0, 0, 0) }
#ifndef FAULT_SETUP_LOOKS_BEFORE
  /* Look at the log after the record is written, and withdraw only one's own. */
  atomic { if :: ended != 0 -> if :: ok -> SEND(withdraw(n), WITHDRAW, n, 0, 0, 0, 0) :: else fi; goto done :: else fi }
#endif
  /* The worker: an upload, then a look. */
  atomic { SEND(create_upload(n), UPLOAD, n, 0, 0, 0, 0) }
#ifndef FAULT_WORKER_LOOKS_BEFORE
  atomic { if :: ended != 0 -> SEND(abort_upload(n), ABORT, n, 0, 0, 0, 0) :: else fi }
#endif
  goto done;
dead:
  atomic { crashed = 1; goto done }
done:
  atomic { running--; ok = 0 }
}

inline clean() {
  n = 1;
  do
  :: n <= SETUPS -> atomic { if :: uploads & (1 << n) -> SEND(abort_upload(n), ABORT, n, 0, 0, 0, 0) :: else fi; n++ }
  :: else -> break
  od;
  atomic { n = record }
  atomic { if :: n != 0 -> SEND(withdraw(n), WITHDRAW, n, 0, 0, 0, 0) :: else fi }
}

proctype committer() {
  bit ok;
  byte n;

  /* It commits what was set up. */
  atomic { if :: record == 0 -> goto done :: else fi }
  atomic {
    SEND(create(COMMIT), CREATE, COMMIT, 0, 0, 0, 0);
    if :: ended == COMMIT :: else -> goto done fi
  }
#ifdef FAULT_FINISH_NEEDS_RECORD
  /* Finishing reads the record: the entry alone does not say what is to be done. */
  atomic { RULE(record_of_living_job_removed, record != 0 || removed) }
#endif
  atomic { SEND(removed = 1, DELETE, 0, 0, 0, 0, 0) }
  clean();
  goto done;
dead:
  atomic { crashed = 1; goto done }
done:
  atomic { running--; ok = 0; n = 0 }
}

proctype aborter() {
  bit ok;
  byte n;

  atomic {
    SEND(create(ABANDON), CREATE, ABANDON, 0, 0, 0, 0);
    if :: ended == ABANDON :: else -> goto done fi
  }
  clean();
  goto done;
dead:
  atomic { crashed = 1; goto done }
done:
  atomic { running--; ok = 0; n = 0 }
}

/* The sweep: it lists records and uploads of jobs that the log has ended. */
proctype sweep() {
  byte n;
  if
  :: ended == COMMIT -> removed = 1
  :: else
  fi;
  if
  :: ended != 0 -> clean()
  :: else
  fi;
dead:
  running--
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
      :: net[i].op == RECORD -> create_record(net[i].a)
      :: net[i].op == UPLOAD -> create_upload(net[i].a)
      :: net[i].op == ABORT -> abort_upload(net[i].a)
      :: net[i].op == WITHDRAW -> withdraw(net[i].a)
      :: net[i].op == CREATE -> create(net[i].a)
      :: net[i].op == DELETE -> removed = 1
      fi;
      landed(i); ok = 0
    }
  od
}
#endif

init {
  byte i;
  atomic {
#if LATE > 0
    run wire();
#endif
    running = SETUPS + ABORTS + COMMITS;
    i = 1;
    do :: i <= SETUPS -> run setup(i); i++ :: else -> break od;
    i = 0;
    do :: i < ABORTS -> run aborter(); i++ :: else -> break od;
    i = 0;
    do :: i < COMMITS -> run committer(); i++ :: else -> break od;
    i = 0
  }
  running == 0 && flying == 0;
  mortal = 0;
  if
  :: crashed || late < LATE -> running = 1; run sweep(); running == 0
  :: else
  fi;
  atomic {
    RULE(record_left, ended == 0 || record == 0);
    RULE(upload_left, ended == 0 || uploads == 0);
    RULE(removal_left, ended != COMMIT || removed)
  }
}
