/* The race of sealed jobs on one log: committers, aborters and recoverers of one to three jobs, in all modes. */
#include "steps.pml"

#ifndef COMMIT_A
#define COMMIT_A 1
#endif
#ifndef ABORT_A
#define ABORT_A 0
#endif
#ifndef COMMIT_B
#define COMMIT_B (JOBS > 1)
#endif
#ifndef ABORT_B
#define ABORT_B 0
#endif
#ifndef FILES_A
#define FILES_A (PARTS > 1 -> 3 : 1)   /* which of its files the first job has */
#endif

/* A lifecycle rule of the store aborts an upload. */
proctype expiry() {
  atomic { if :: pending = pending & ~LOWEST(pending) :: true fi; running-- }
}

inline cast(n, part, j) {
  i = 0;
  do :: i < n -> running++; run ender(part, j); i++ :: else -> break od
}

inline open_job(j, files) {
  if :: mode[j] = APPEND :: mode[j] = REPLACE :: mode[j] = FAIL fi;
  record[j] = size + 1; sealed[j] = files; pending = pending | SHIFT(j, files); staged = staged | SHIFT(j, files)
}

inline recover(j) {
  atomic { running++; run ender(RECOVERER, j) }
  running == 0
}

init {
  byte i;
  atomic {
    /* Older data is in the log; or there was none, for mode fail. */
    who[0] = NOBODY; size = 1; kind[1] = COMMIT; who[1] = NOBODY; newest = 1;
    open_job(0, FILES_A);
#if JOBS > 1
    if :: i = 1 :: PARTS > 1 -> i = 2 :: PARTS > 1 -> i = 3 fi;
    open_job(1, i);
#endif
#if JOBS > 2
    open_job(2, 1);
#endif
#ifdef MODE_A
    mode[0] = MODE_A; mode[1] = MODE_B; mode[2] = MODE_C;
#endif
    if :: table[1] = OLD :: mode[0] == FAIL || (JOBS > 1 && mode[1] == FAIL) -> table[1] = 0 fi;
    named = table[1]; objects = table[1];
#ifdef STRANGERS
    if :: objects = objects | STRANGER :: true fi;
#endif
    START_WIRE;
    cast(COMMIT_A, COMMITTER, 0);
    cast(ABORT_A, ABORTER, 0);
    cast(COMMIT_B, COMMITTER, 1);
    cast(ABORT_B, ABORTER, 1);
#if JOBS > 2
    cast(1, COMMITTER, 2);
#endif
#ifdef EXPIRY
    running++; run expiry();
#endif
    i = 0
  }
  running == 0;
  if
  :: crashed -> atomic { mortal = 0; late = 0 };
    recover(0);
#if JOBS > 1
    recover(1);
#endif
#if JOBS > 2
    recover(2);
#endif
  :: else
  fi;
  atomic {
    flying == 0 ->
    at_rest(0);
#if JOBS > 1
    at_rest(1);
#endif
#if JOBS > 2
    at_rest(2);
#endif
    table_at_rest()
  }
}
