/* A commit in shards: each shard is completed anywhere and leaves a note that carries the seal's digest; a finisher
   creates the entry when all notes are there. Workers of a seal that does not stand (number 2) hold uploads of their own. */
#include "common.pml"

#ifndef FINISHERS
#define FINISHERS 1
#endif
#ifndef ABORTS
#define ABORTS 1
#endif
#ifndef TWINS
#define TWINS 1
#endif

#define SHARDS 2
#define FILE(seal, shard) (1 << ((shard) + SHARDS * ((seal) - 1)))
#define MINE (FILE(1, 0) | FILE(1, 1))      /* what seal 1, which stands, counts */

#define COMMIT  1
#define ABANDON 2

#define COMPLETE 1
#define NOTE     2
#define CREATE   3
#define ABORT    4
#define DELETE   5

byte ended;
byte objects;
byte pending = MINE;                        /* the uploads of seal 2 were aborted with the attempt that made them */
byte note[SHARDS];                          /* the seal that the note of a shard carries, 0 for none */

bit snapshot_file_missing, objects_are_not_the_snapshot, upload_pending_at_rest, job_not_ended;

inline check() { RULE(snapshot_file_missing, ended != COMMIT || (MINE & ~objects) == 0) }

inline complete(f) { if :: pending & f -> pending = pending & ~f; objects = objects | f :: else fi }

/* Create-only: the digest is part of a note's key. */
inline leave_note(shard, seal) {
#ifdef FAULT_NOTES_WITHOUT_SEAL
  note[shard] = 1
#else
  if :: seal == 1 -> note[shard] = 1 :: else fi
#endif
}

inline create(what) { if :: ended == 0 -> ended = what :: else fi; check() }

inline abort_upload(f) { pending = pending & ~f }

inline delete(f) { objects = objects & ~f; check() }

/* Worker: one shard, by one seal. */
proctype worker(byte shard; byte seal) {
  atomic { if :: ended != 0 -> goto done :: else fi }
  atomic {
    SEND(complete(FILE(seal, shard)), COMPLETE, FILE(seal, shard), 0, 0, 0, 0);
    /* An upload of a seal that does not stand looks as if the job had been cleaned up: such a worker trusts its hand-over. */
    if :: seal == 1 && !(objects & FILE(seal, shard)) -> goto done :: else fi
  }
  atomic { SEND(leave_note(shard, seal), NOTE, shard, seal, 0, 0, 0) }
  goto done;
dead:
  atomic { crashed = 1; goto done }
done:
  running--
}

proctype finisher() {
  atomic {
    if
    :: ended != 0 -> goto done
#ifndef FAULT_FINISH_UNCHECKED
    :: ended == 0 && !(note[0] && note[1]) -> goto done
#endif
    :: else
    fi
  }
  atomic { SEND(create(COMMIT), CREATE, COMMIT, 0, 0, 0, 0) }
  goto done;
dead:
  atomic { crashed = 1; goto done }
done:
  running--
}

proctype aborter() {
  byte i;
  atomic {
    SEND(create(ABANDON), CREATE, ABANDON, 0, 0, 0, 0);
    if :: ended == ABANDON :: else -> goto done fi
  }
next_undo:
  atomic { SEND(abort_upload(FILE(1, i)), ABORT, FILE(1, i), 0, 0, 0, 0) }
  atomic { SEND(delete(FILE(1, i)), DELETE, FILE(1, i), 0, 0, 0, 0); i++; if :: i < SHARDS -> goto next_undo :: else fi }
  goto done;
dead:
  atomic { crashed = 1; goto done }
done:
  atomic { running--; i = 0 }
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
      :: net[i].op == COMPLETE -> complete(net[i].a)
      :: net[i].op == NOTE -> leave_note(net[i].a, net[i].b)
      :: net[i].op == CREATE -> create(net[i].a)
      :: net[i].op == ABORT -> abort_upload(net[i].a)
      :: net[i].op == DELETE -> delete(net[i].a)
      fi;
      landed(i)
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
    running = 3 + TWINS + FINISHERS + ABORTS;
    run worker(0, 1); run worker(1, 1); run worker(0, 2);
    i = 0;
    do :: i < TWINS -> run worker(0, 1); i++ :: else -> break od;
    i = 0;
    do :: i < FINISHERS -> run finisher(); i++ :: else -> break od;
    i = 0;
    do :: i < ABORTS -> run aborter(); i++ :: else -> break od;
    i = 0
  }
  running == 0;
  mortal = 0;
  /* A third process ends the job: it does the shards again and finishes, or undoes. */
  running = 3; run worker(0, 1); run worker(1, 1); running == 1;
  run finisher(); running == 0;
  if :: ended != COMMIT -> running = 1; run aborter(); running == 0 :: else fi;
  atomic {
    flying == 0 ->
    RULE(job_not_ended, ended != 0);
    RULE(upload_pending_at_rest, pending == 0);
    RULE(objects_are_not_the_snapshot, objects == (ended == COMMIT -> MINE : 0))
  }
}
