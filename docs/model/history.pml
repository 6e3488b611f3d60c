/* The history of a table: files that commits take and retain, releases, rollbacks to any generation, sweeps, and readers.
   A release is created by a process that has deleted all that the one before let go: the fold forgets that. */
#define RETENTION
#define SWEEPS
#include "steps.pml"

#ifndef COMMIT_A
#define COMMIT_A 1
#endif
#ifndef COMMIT_B
#define COMMIT_B (JOBS > 1)
#endif
#ifndef ABORT_A
#define ABORT_A 0
#endif
#ifndef RELEASES
#define RELEASES 0
#endif
#ifndef SWEEP
#define SWEEP 0            /* a sweep of each rollback, as if it were dead */
#endif
#ifndef READERS
#define READERS 0
#endif
#ifndef FOLLOWERS
#define FOLLOWERS 0        /* readers of what was added since the generation that they have read */
#endif
#ifndef POLLS
#define POLLS 3
#endif
#ifndef RETAIN
#define RETAIN 255         /* bits of jobs */
#endif
#define ROLLER_1 JOBS
#define ROLLER_2 (JOBS + 1)

bit reader_reports_damage, reader_cut_off, follower_misses_file, follower_gets_file_twice;

/* Release what was retained for long enough: any of it. Whatever a listing of the log shows, its head is found by keys. */
proctype releaser() {
  byte head;
  short frees, doomed;
  bit entered;

delete_freed:
  /* What the newest release let go, as of the head that the next entry follows. */
#ifdef FAULT_DELETES_RETAINED
  atomic { head = size; doomed = (freeable | retained) & objects }
#else
  atomic { head = size; doomed = freeable & objects }
#endif
deletion:
  atomic {
    if
    :: doomed != 0 -> SEND(delete(LOWEST(doomed)), DELETE, 0, 0, LOWEST(doomed), 0, 0); doomed = doomed & ~LOWEST(doomed); goto deletion
    :: doomed == 0 && entered -> goto done
    :: else
    fi;
#ifdef FAULT_FREED_IS_FORGOTTEN
    head = size;
#endif
    /* Any of it is due. Worked out anew at each try, because a rollback may have brought some of it back. */
    doomed = retained;
    do
    :: doomed != 0 -> if :: frees = frees | LOWEST(doomed) :: !patience fi; doomed = doomed & ~LOWEST(doomed)
    :: else -> break
    od;
    if :: frees == 0 -> goto done :: else fi
  }
append:
  atomic {
    BEFORE_ENTRY(append);
    SEND(create(head + 1, RELEASE, NOBODY, frees, 0), CREATE, head + 1, RELEASE, frees, NOBODY, 0);
    if
    :: ok -> entered = 1;
#ifdef FAULT_RELEASE_DELETES_WHAT_WAS_DUE
      doomed = frees; frees = 0; goto deletion
    :: else -> head = size; goto append
#else
      frees = 0; goto delete_freed
    :: else -> frees = 0; goto delete_freed
#endif
    fi
  }
dead:
  crashed = 1;
done:
  atomic { running--; head = 0; frees = 0; doomed = 0; entered = 0 }
}

/* Read the table at its newest generation, or at any older one. A file that is gone was let go: begin again. */
proctype reader() {
  byte g, last;
  short rest;
  bit older;

again:
  atomic {
    g = newest;
#ifdef FAULT_READER_BELIEVES_LISTING
    if :: true :: lag > 0 && newest > 1 -> lag--; g = newest - 1; do :: kind[g] != COMMIT -> g-- :: else -> break od fi;
#endif
    if
    :: true
    :: last == 0 && g > 1 -> older = 1; g--; do :: kind[g] != COMMIT -> g-- :: kind[g] == COMMIT && g > 1 -> g-- :: kind[g] == COMMIT -> break od
    fi;
    RULE(reader_reports_damage, g != last);
    rest = table[g]; last = g
  }
get_file:
  atomic {
    if
    :: rest == 0 -> goto done
    :: rest != 0 && (objects & LOWEST(rest)) != 0 -> rest = rest & ~LOWEST(rest); goto get_file
    :: else ->
      RULE(reader_cut_off, (LOWEST(rest) & freed) != 0);
      if :: older -> goto done :: else -> goto again fi
    fi
  }
done:
  atomic { running--; g = 0; last = 0; rest = 0; older = 0 }
}

/* Read what was added since the last time; after a rollback the whole table. Each time at any moment. */
#define ENTERED(j, g) (end[j] != 0 && end[j] > (g) -> MINE(j) : 0)
#define SINCE(g) ((g) == 0 -> ~0 : ENTERED(0, g) | (JOBS > 1 -> ENTERED(1, g) : 0))
proctype follower() {
  byte g, polls, n;
  short held, added;
  bit rewound;

  do
  :: polls < POLLS ->
    atomic {
      n = g; rewound = 0;
      do :: n < size -> n++; rewound = rewound || (g != 0 && who[n] >= JOBS && who[n] != NOBODY && kind[n] == COMMIT) :: else -> break od;
#ifdef FAULT_FOLLOWER_PASSES_ROLLBACK
      rewound = 0;
#endif
      if :: rewound -> held = 0; g = 0 :: else fi;
      added = table[size] & SINCE(g);
      RULE(follower_gets_file_twice, (added & held) == 0);
      held = held | added; g = newest;
      RULE(follower_misses_file, (table[size] & ~held) == 0);
      n = 0; added = 0; rewound = 0; polls++
    }
  :: break
  od;
  atomic { running--; g = 0; polls = 0; held = 0 }
}

inline cast(n, part, j) {
  i = 0;
  do :: i < n -> running++; run ender(part, j); i++ :: else -> break od
}

inline open_job(j) {
  record[j] = size + 1; sealed[j] = 1; pending = pending | SHIFT(j, 1); staged = staged | SHIFT(j, 1)
}

#define NEVER_SET_UP(j) (record[j] == 0 && !ENDED(j))
inline recover(j) {
  if
  :: NEVER_SET_UP(j) || (ENDED(j) && !crashed)
  :: else -> atomic { running++; run ender(RECOVERER, j) } running == 0
  fi
}

inline sweep(j) {
  if
  :: NEVER_SET_UP(j)
  :: else -> atomic { running++; run ender(SWEEPER, j) } running == 0
  fi
}
inline ended_at_rest(j) { if :: NEVER_SET_UP(j) :: else -> at_rest(j) fi }
inline all_at_rest() {
  at_rest(0);
#if JOBS > 1
  at_rest(1);
#endif
#if ROLLBACKS > 0
  ended_at_rest(ROLLER_1);
#endif
#if ROLLBACKS > 1
  ended_at_rest(ROLLER_2);
#endif
  skip
}

init {
  byte i;
  atomic {
    who[0] = NOBODY; size = 1; kind[1] = COMMIT; who[1] = NOBODY; newest = 1;
    table[1] = OLD; named = OLD; objects = OLD;
#ifdef STRANGERS
    objects = objects | STRANGER;
#endif
    retains = RETAIN;
    mode[0] = MODE_A; open_job(0);
#if JOBS > 1
    mode[1] = MODE_B; open_job(1);
#endif
#if ROLLBACKS > 0
    mode[ROLLER_1] = RESTORE;
#endif
#if ROLLBACKS > 1
    mode[ROLLER_2] = RESTORE;
#endif
    START_WIRE;
    cast(COMMIT_A, COMMITTER, 0);
    cast(ABORT_A, ABORTER, 0);
#if JOBS > 1
    cast(COMMIT_B, COMMITTER, 1);
#endif
#if ROLLBACKS > 0
    cast(1, ROLLER, ROLLER_1);
    cast(SWEEP, SWEEPER, ROLLER_1);
#endif
#if ROLLBACKS > 1
    cast(1, ROLLER, ROLLER_2);
#endif
    i = 0; do :: i < RELEASES -> running++; run releaser(); i++ :: else -> break od;
    i = 0; do :: i < READERS -> running++; run reader(); i++ :: else -> break od;
    i = 0; do :: i < FOLLOWERS -> running++; run follower(); i++ :: else -> break od;
    i = 0
  }
  running == 0;
  /* Where nobody died and nothing was late, recovery has nothing to do, and a sweep neither. */
  atomic { if :: !crashed && late == LATE -> all_at_rest() :: else fi; mortal = 0 }
  recover(0);
#if JOBS > 1
  recover(1);
#endif
#if ROLLBACKS > 0
  recover(ROLLER_1);
#endif
#if ROLLBACKS > 1
  recover(ROLLER_2);
#endif
  /* Later everything is due. */
  atomic { flying == 0 -> late = 0; patience = 1; running++; run releaser() }
  running == 0;
#if LATE > 0
  sweep(0);
#if JOBS > 1
  sweep(1);
#endif
#if ROLLBACKS > 0
  sweep(ROLLER_1);
#endif
#if ROLLBACKS > 1
  sweep(ROLLER_2);
#endif
#endif
  atomic { all_at_rest(); RULE(objects_are_not_the_table, retained == 0); table_at_rest() }
}
