/* A job from its setup on: setups, task attempts, sealers, shards and sweeps beside those that end it.
   A cast is chosen by numbers: how many setups, tasks and so on of the jobs A and B. */
#define SWEEPS
#include "steps.pml"

#ifndef SETUP_A
#define SETUP_A 0
#endif
#ifndef SETUP_B
#define SETUP_B 0
#endif
#ifndef SETUP_C
#define SETUP_C 0
#endif
#ifndef COMMIT_A
#define COMMIT_A 0
#endif
#ifndef COMMIT_B
#define COMMIT_B 0
#endif
#ifndef ABORT_A
#define ABORT_A 0
#endif
#ifndef ABORT_B
#define ABORT_B 0
#endif
#ifndef SWEEP_A
#define SWEEP_A 0
#endif
#ifndef TASKS
#define TASKS 0            /* bits of the first job's files: a task attempt writes each */
#endif
#ifndef SEAL_1
#define SEAL_1 0           /* the files of the stage attempts that a sealer counts; 0: no sealer */
#endif
#ifndef SEAL_2
#define SEAL_2 0
#endif
#ifndef SHARDS
#define SHARDS 0           /* bits of the first job's files: a worker completes each that is sealed */
#endif
#ifndef OPEN_A
#define OPEN_A 0           /* the first job is set up already; its files are uploaded and sealed */
#endif
#ifndef OPEN_B
#define OPEN_B 0
#endif

short counted;             /* attempts that found no receipt after their write: only these are reported, and sealed */

bit two_open_jobs_of_one_run, no_open_job_of_a_run;

/* Tries of one run, if RUN is defined: a later try has a higher number. */
#define LIVES(k) ((k) < JOBS && record[k] != 0 && !HAS_RECEIPT(k))
inline end_earlier_tries(j) {
#ifdef FAULT_SETUPS_END_EACH_OTHER
  if
  :: j != 0 && LIVES(0) -> running++; run ender(ABORTER, 0)
  :: else
  fi;
  if
  :: j != 1 && LIVES(1) -> running++; run ender(ABORTER, 1)
  :: else
  fi;
  if
  :: j != 2 && LIVES(2) -> running++; run ender(ABORTER, 2)
  :: else
  fi
#else
  if
  :: (j < 1 && LIVES(1)) || (j < 2 && LIVES(2)) -> running++; run ender(ABORTER, j)
  :: else ->
    if :: j > 0 && LIVES(0) -> running++; run ender(ABORTER, 0) :: else fi;
    if :: j > 1 && LIVES(1) -> running++; run ender(ABORTER, 1) :: else fi
  fi
#endif
}

proctype setup(byte j) {
  byte head;
  bit own;
  short older;

#ifdef FRESH
  atomic { if :: size == 0 -> older = objects :: else -> goto read_listed fi }
  atomic { BEGIN_LOG(older) }
#endif
read_listed:
  /* The newest entry that a listing shows, then the receipt: so the base comes before the job's end. */
#ifdef FAULT_RECEIPT_BEFORE_HEAD
  atomic { if :: HAS_RECEIPT(j) -> goto done :: else fi }
#endif
  atomic {
    head = size;
    if :: true :: lag > 0 && size > 1 -> lag--; head = size - 1 fi;
    if :: end[j] != 0 && end[j] == head -> goto done :: else fi
  }
#if !defined(FAULT_RECEIPT_BEFORE_HEAD) && !defined(FAULT_SETUP_LOOKS_ONCE)
  atomic { if :: HAS_RECEIPT(j) -> goto done :: else fi }
#endif
#ifdef FAULT_TRIES_LISTED_BEFORE_OWN_RECORD
  atomic { end_earlier_tries(j) }
#endif
  atomic { SEND(set_up(j, head), SET_UP, j, head, 0, 0, 0); own = ok }
  /* Write, then look. */
#ifdef FAULT_SETUP_DOES_NOT_LOOK
  goto done;
#endif
  atomic { if :: !HAS_RECEIPT(j) -> goto living :: HAS_RECEIPT(j) && !own -> goto done :: else fi }
  atomic { SEND(drop(RECORD, j), DROP, RECORD, j, 0, 0, 0) }
  goto done;
living:
#if defined(RUN) && !defined(FAULT_TRIES_LISTED_BEFORE_OWN_RECORD)
  atomic { end_earlier_tries(j) }
#endif
  goto done;
dead:
  crashed = 1;
done:
  atomic { running--; head = 0; own = 0; older = 0 }
}

#ifdef FAULT_FLAG_IS_THE_RECORD
#define LOOKS_ENDED(j) (record[j] == 0)
#else
#define LOOKS_ENDED(j) HAS_RECEIPT(j)
#endif

proctype task(byte j; short f) {
  if :: atomic { record[j] == 0 -> goto done } :: record[j] != 0 fi;
  atomic { SEND(upload(f), UPLOAD, 0, 0, f, 0, 0) }
  atomic { SEND(stage(f), STAGE, 0, 0, f, 0, 0) }
#ifdef FAULT_TASK_DOES_NOT_LOOK
  counted = counted | f;
  goto done;
#endif
  atomic { if :: LOOKS_ENDED(j) :: else -> counted = counted | f; goto done fi }
  atomic { SEND(abort_upload(f), STOP, 0, 0, f, 0, 0) }
  atomic { SEND(unstage(f), UNSTAGE, 0, 0, f, 0, 0) }
  goto done;
dead:
  crashed = 1;
done:
  atomic { running--; f = 0 }
}

/* Seal the stage attempts with these files. */
proctype sealer(byte j; byte files) {
  bit own;
  if :: atomic { record[j] == 0 -> goto done } :: record[j] != 0 fi;
  if :: atomic { (staged & counted & SHIFT(j, files)) != SHIFT(j, files) -> goto done } :: else fi;
  atomic { SEND(seal(j, files), SEAL, j, files, 0, 0, 0); own = ok }
#ifdef FAULT_SEALER_DOES_NOT_LOOK
  goto done;
#endif
  atomic { if :: HAS_RECEIPT(j) && own :: else -> goto done fi }
#ifdef FAULT_SEALER_DELETES_ITS_SEAL
  atomic { SEND(drop(SEALED, j), DROP, SEALED, j, 0, 0, 0) }
#else
  /* Nobody takes back a seal before what was completed by it: the sealer ends what the job left, as recovery does. */
  atomic { running++; run ender(RECOVERER, j) }
#endif
  goto done;
dead:
  crashed = 1;
done:
  atomic { running--; files = 0; own = 0 }
}

/* A worker of a commit in shards completes its part of the seal. */
proctype shard(byte j; short f) {
  atomic {
#ifndef FAULT_SHARD_WITHOUT_SEAL
    if :: (f & SHIFT(j, sealed[j])) == 0 -> goto done :: else fi;
#endif
    skip
  }
  atomic { SEND(complete(f), COMPLETE, 0, 0, f, 0, 0) }
  goto done;
dead:
  crashed = 1;
done:
  atomic { running--; f = 0 }
}

inline cast(n, part, j) {
  i = 0;
  do :: i < n -> running++; run ender(part, j); i++ :: else -> break od
}
inline setups(n, j) {
  i = 0;
  do :: i < n -> running++; run setup(j); i++ :: else -> break od
}
inline open_job(j, files) {
  record[j] = size + 1; sealed[j] = files;
  pending = pending | SHIFT(j, files); staged = staged | SHIFT(j, files); uploaded = uploaded | SHIFT(j, files);
  counted = counted | SHIFT(j, files)
}

#define NEVER_SET_UP(j) (record[j] == 0 && !ENDED(j) && !(MINE(j) & (uploaded | staged)) && sealed[j] == 0)
inline ended_at_rest(j) { if :: ENDED(j) -> at_rest(j) :: else fi }
inline recover(j) {
  if
  :: NEVER_SET_UP(j) || (ENDED(j) && !crashed)
  :: else -> atomic { running++; run ender(RECOVERER, j) } running == 0
  fi
}
inline sweep(j) {
  atomic { running++; run ender(SWEEPER, j) }
  running == 0;
  if :: NEVER_SET_UP(j) :: else -> at_rest(j) fi
}

init {
  byte i;
  atomic {
    who[0] = NOBODY;
    objects = COPIES;
#ifdef FRESH
    if :: objects = objects | OLD :: true fi;
#else
    size = 1; kind[1] = COMMIT; who[1] = NOBODY; newest = 1; objects = OLD; table[1] = OLD; named = OLD;
#endif
#ifdef MODE
    mode[0] = MODE;
#else
    if :: mode[0] = APPEND :: mode[0] = REPLACE :: mode[0] = FAIL fi;
#endif
#if OPEN_A
    open_job(0, OPEN_A);
#endif
#ifdef UNSEALED
    record[0] = size + 1; sealed[0] = 0;
#endif
#if OPEN_B
    open_job(1, OPEN_B);
#endif
    START_WIRE;
    setups(SETUP_A, 0);
    setups(SETUP_B, 1);
    setups(SETUP_C, 2);
    if :: (TASKS & 1) != 0 -> running++; run task(0, SHIFT(0, 1)) :: else fi;
    if :: (TASKS & 2) != 0 -> running++; run task(0, SHIFT(0, 2)) :: else fi;
    if :: (TASKS & 4) != 0 -> running++; run task(0, SHIFT(0, 4)) :: else fi;
    if :: SEAL_1 != 0 -> running++; run sealer(0, SEAL_1) :: else fi;
    if :: SEAL_2 != 0 -> running++; run sealer(0, SEAL_2) :: else fi;
    if :: (SHARDS & 1) != 0 -> running++; run shard(0, SHIFT(0, 1)) :: else fi;
    if :: (SHARDS & 2) != 0 -> running++; run shard(0, SHIFT(0, 2)) :: else fi;
    if :: (SHARDS & 4) != 0 -> running++; run shard(0, SHIFT(0, 4)) :: else fi;
    cast(COMMIT_A, COMMITTER, 0);
    cast(COMMIT_B, COMMITTER, 1);
    cast(ABORT_A, ABORTER, 0);
    cast(ABORT_B, ABORTER, 1);
    cast(SWEEP_A, SWEEPER, 0);
    i = 0
  }
  running == 0;
  /* Where nobody died and nothing was late, an ended job leaves nothing, without recovery and without a sweep. */
  atomic {
    if
    :: !crashed && late == LATE ->
      ended_at_rest(0);
#if JOBS > 1
      ended_at_rest(1);
#endif
#ifdef RUN
      RULE(two_open_jobs_of_one_run, LIVES(0) + LIVES(1) + LIVES(2) < 2);
      RULE(no_open_job_of_a_run, LIVES(0) + LIVES(1) + LIVES(2) > 0)
#endif
    :: else
    fi;
    mortal = 0
  }
  recover(0);
#if JOBS > 1
  recover(1);
#endif
#if JOBS > 2
  recover(2);
#endif
  atomic { flying == 0 -> if :: size > 0 -> table_at_rest() :: else fi; late = 0; patience = 1 }
  sweep(0);
#if JOBS > 1
  sweep(1);
#endif
#if JOBS > 2
  sweep(2);
#endif
}
