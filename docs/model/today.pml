/* The protocol before the log: a state, a lock, one plan and a saved _SUCCESS. Two jobs on one partition, two files each.
   Every cast but the control shows a fault that real runs showed. */
#include "common.pml"

#ifndef COMMIT_A
#define COMMIT_A 1
#endif
#ifndef COMMIT_B
#define COMMIT_B 1
#endif
#ifndef ABORT_A
#define ABORT_A 0
#endif
#ifndef ABORT_B
#define ABORT_B 0
#endif
#ifndef SETUP_A
#define SETUP_A 0
#endif

#define OLD 1
#define MINE(j) (6 << (2 * (j)))
#define LOWEST(set) ((set) & (-(set)))

#define APPEND  0
#define REPLACE 1
#ifndef MODE_A
#define MODE_A APPEND
#endif
#ifndef MODE_B
#define MODE_B REPLACE
#endif
#define MODE(j) ((j) == 0 -> MODE_A : MODE_B)

#define NONE       0
#define SEALED     1
#define COMMITTING 2
#define COMMITTED  3
#define ABORTING   4
#define ABORTED    5

#define COMMITTER 0
#define ABORTER   1
#define RECOVERER 2

#define MOVE     1
#define COMPLETE 2
#define ABORT    3
#define DELETE   4
#define UNMARK   5

byte state[2];
byte version[2];               /* the state's ETag */
byte pinned[2];                /* the plan that the state names */
byte saved[2];                 /* the marker that the state saved */
bit begun[2];
bit record[2];                 /* job.json */
byte plan[2];                  /* the plan's ETag: by whom it was written */
byte replaces[2];              /* what the plan lists */
bit manifest[2];
bit spent[2];
byte lock;                     /* the job that holds it, plus 1 */
byte objects = OLD;
byte pending;
/* _SUCCESS by ETag: 0 for none; 2 and 3 name the data from before, put in one piece or in parts; 4 + 2 * job. */
byte marker = 2;
#define NAMES(m) ((m) / 2)

bit committed_files_lost, replaced_data_left, aborted_by_its_twin, stuck_in_committed;
bit marker_missing, marker_names_wrong_job, marker_names_removed_data;

inline move(job, seen, to, plan_id, marker_seen) {
  if
  :: state[job] != NONE && version[job] == seen ->
    state[job] = to; version[job]++; ok = 1;
    if :: to == COMMITTING -> pinned[job] = plan_id; saved[job] = marker_seen; begun[job] = 1 :: else fi
  :: else -> ok = 0
  fi
}

inline complete(f) {
  if :: pending & f -> pending = pending & ~(f); objects = objects | f :: else fi
}

inline abort_upload(f) { pending = pending & ~(f) }

inline delete(f) { objects = objects & ~(f) }

inline unmark(etag) { if :: marker == etag -> marker = 0 :: else fi }

proctype actor(byte part; byte j; byte me) {
  byte v, m, f, rest, own;
  bit ok, rolls_back, holds;

top:
  atomic {
    m = 0; f = 0; rest = 0; ok = 0; own = 0; rolls_back = 0;
    v = version[j];
    if
    :: state[j] == NONE || state[j] == ABORTED -> goto done
    :: state[j] == COMMITTED -> if :: part == ABORTER -> goto done :: else -> goto finish fi
    :: state[j] == ABORTING -> if :: part == COMMITTER -> goto done :: else -> goto undo fi
    :: state[j] == COMMITTING -> if :: part == ABORTER -> goto abort :: else -> goto publish fi
    :: else -> if :: part == COMMITTER -> own = plan[j] :: else -> goto abort fi
    fi
  }
  /* begin */
  if
  :: MODE(j) != APPEND ->
    if
    :: atomic { lock == 0 || lock == j + 1 -> lock = j + 1; holds = 1; if :: version[j] != v -> goto top :: else fi }
    :: crashed -> goto done
    fi
  :: else
  fi;
  atomic {
    if
    :: MODE(j) == REPLACE -> rest = objects        /* a listing, whatever it shows */
    :: else
    fi;
    if
    :: own != 0 && rest != replaces[j] -> goto refused
    :: own != 0 && rest == replaces[j] -> goto planned
    :: else
    fi
  }
  atomic { own = me; plan[j] = me; replaces[j] = rest }
planned:
  atomic { rest = 0; m = marker }
  atomic {
    SEND(move(j, v, COMMITTING, own, m), MOVE, j, v, COMMITTING, own, m);
    goto top
  }

refused:
  atomic {
    move(j, v, SEALED, 0, 0);
    if
    :: ok -> if :: lock == j + 1 -> lock = 0 :: else fi; goto done
    :: else -> goto top
    fi
  }

publish:
  if
  :: MODE(j) != APPEND && !holds ->
    if
    :: atomic { lock == 0 || lock == j + 1 -> lock = j + 1; holds = 1 }
    :: crashed && part != RECOVERER -> goto done
    fi
  :: else
  fi;
  atomic { if :: plan[j] != pinned[j] -> goto roll_back :: else -> m = saved[j] fi }
  atomic { if :: m != 0 -> SEND(unmark(m), UNMARK, m, 0, 0, 0, 0) :: else fi; m = 0; f = MINE(j) }
next_upload:
  atomic {
    SEND(complete(LOWEST(f)), COMPLETE, LOWEST(f), 0, 0, 0, 0);
    if :: objects & LOWEST(f) :: else -> f = 0; goto roll_back fi;
    f = f & ~LOWEST(f);
    if :: f != 0 -> goto next_upload :: else fi
  }
  atomic { SEND(move(j, v, COMMITTED, 0, 0), MOVE, j, v, COMMITTED, 0, 0); goto top }

roll_back:
  atomic { if :: version[j] != v -> goto top :: else -> rolls_back = 1; goto abort fi }

finish:
  atomic {
    if
    :: !record[j] -> if :: lock == j + 1 -> lock = 0 :: else fi; goto clean
    :: record[j] && plan[j] != pinned[j] -> goto done          /* the plan was changed after it was written */
    :: else -> rest = replaces[j]
    fi
  }
  atomic { if :: mortal -> goto dead :: true fi; manifest[j] = 1 }
next_removal:
  atomic {
    if
    :: rest != 0 -> SEND(delete(LOWEST(rest)), DELETE, LOWEST(rest), 0, 0, 0, 0); rest = rest & ~LOWEST(rest); goto next_removal
    :: else
    fi
  }
write_success:
  atomic { m = marker; if :: NAMES(m) == j + 2 || state[j] != COMMITTED -> goto written :: else fi }
  atomic {
    if :: mortal -> goto dead :: true fi;
    if :: marker == m -> marker = 2 * (j + 2) :: else -> goto write_success fi
  }
written:
  atomic { m = 0; if :: lock == j + 1 -> lock = 0 :: else fi }
clean:
  atomic { if :: mortal -> goto dead :: true fi; record[j] = 0 }
  atomic { if :: mortal -> goto dead :: true fi; state[j] = NONE; plan[j] = 0; goto done }

abort:
  atomic { SEND(move(j, v, ABORTING, 0, 0), MOVE, j, v, ABORTING, 0, 0); if :: ok -> v = version[j] :: else -> goto top fi }
undo:
  atomic { f = MINE(j) }
next_undo:
  atomic { SEND(abort_upload(LOWEST(f)), ABORT, LOWEST(f), 0, 0, 0, 0) }
  atomic {
    if :: begun[j] -> SEND(delete(LOWEST(f)), DELETE, LOWEST(f), 0, 0, 0, 0) :: else fi;
    f = f & ~LOWEST(f);
    if :: f != 0 -> goto next_undo :: else fi
  }
  /* Restore _SUCCESS: a look, then a write without a condition where it was put in one piece. */
  atomic { if :: begun[j] && saved[j] != 0 && (marker == 0 || marker == saved[j]) :: else -> goto restored fi; m = marker }
  atomic {
    if :: mortal -> goto dead :: true fi;
    if
    :: saved[j] % 2 == 0 -> marker = saved[j] + 1
    :: saved[j] % 2 == 1 && marker == m -> marker = saved[j] - 1
    :: else
    fi
  }
restored:
  atomic { m = 0; if :: mortal -> goto dead :: true fi; spent[j] = 1 }
  atomic { if :: mortal -> goto dead :: true fi; move(j, v, ABORTED, 0, 0); if :: ok :: else -> goto top fi }
  atomic { if :: mortal -> goto dead :: true fi; if :: lock == j + 1 -> lock = 0 :: else fi; record[j] = 0 }
  atomic { if :: mortal -> goto dead :: true fi; state[j] = NONE; plan[j] = 0; goto done }

dead:
  atomic { crashed = 1; goto done }
done:
  atomic { running--; v = 0; m = 0; f = 0; rest = 0; own = 0; ok = 0; rolls_back = 0; holds = 0 }
}

/* A setup of job A that slept since it saw no state: it creates one, looks for the job's end, and withdraws. */
proctype slow_setup() {
  atomic { if :: state[0] == NONE && version[0] == 0 -> state[0] = SEALED :: else fi }
  atomic { if :: manifest[0] || spent[0] :: else -> goto done fi }
  record[0] = 0;
  state[0] = NONE;
done:
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
      :: net[i].op == MOVE -> move(net[i].a, net[i].b, net[i].c, net[i].d, net[i].e)
      :: net[i].op == COMPLETE -> complete(net[i].a)
      :: net[i].op == ABORT -> abort_upload(net[i].a)
      :: net[i].op == DELETE -> delete(net[i].a)
      :: net[i].op == UNMARK -> unmark(net[i].a)
      fi;
      landed(i); ok = 0
    }
  od
}
#endif

inline cast(n, part, j) {
  i = 0;
  do :: i < n -> running++; run actor(part, j, me); me++; i++ :: else -> break od
}

inline recover(j) {
  atomic { running++; run actor(RECOVERER, j, 8 + j) }
  running == 0
}

#define DONE(j) (manifest[j] || state[j] == COMMITTED)
#define LOST(j) (MINE(j) & ~objects)

init {
  byte i, me, expected;
  atomic {
    pending = MINE(0) | MINE(1);
    state[0] = SEALED; state[1] = SEALED; record[0] = 1; record[1] = 1;
    me = 1;
#if LATE > 0
    run wire();
#endif
    cast(COMMIT_A, COMMITTER, 0);
    cast(ABORT_A, ABORTER, 0);
    cast(COMMIT_B, COMMITTER, 1);
    cast(ABORT_B, ABORTER, 1);
#if SETUP_A
    running++;
    run slow_setup();
#endif
    i = 0; me = 0
  }
  running == 0;
  mortal = 0;
  if
  :: crashed && lock == 2 -> recover(1); recover(0)
  :: crashed && lock != 2 -> recover(0); recover(1)
  :: else
  fi;
  atomic {
    flying == 0 ->
    RULE(stuck_in_committed, state[0] != COMMITTED && state[1] != COMMITTED);
    RULE(aborted_by_its_twin, crashed || (!spent[0] || ABORT_A > 0) && (!spent[1] || ABORT_B > 0));
    RULE(committed_files_lost, !DONE(0) || LOST(0) == 0 || LOST(0) == MINE(0) && DONE(1) && MODE_B == REPLACE);
    RULE(committed_files_lost, !DONE(1) || LOST(1) == 0 || LOST(1) == MINE(1) && DONE(0) && MODE_A == REPLACE);
    RULE(replaced_data_left, (objects & OLD) == 0 || (!DONE(0) || MODE_A == APPEND) && (!DONE(1) || MODE_B == APPEND));
    RULE(replaced_data_left, MODE_A == APPEND || MODE_B == APPEND || !DONE(0) || !DONE(1) || LOST(0) || LOST(1));
    RULE(marker_missing, marker != 0);
    RULE(marker_names_wrong_job, marker == 0 || (NAMES(marker) == 1 -> (!DONE(0) && !DONE(1)) : DONE(NAMES(marker) - 2)));
    RULE(marker_names_removed_data, NAMES(marker) < 2 || LOST(NAMES(marker) - 2) == 0)
  }
}
