/* Retention: replaced files are kept, released by an entry, and deleted; a rollback refers to old files again; a reader
   reads one generation. Two replaces, one rollback to generation 0, sweeps and readers. */
#include "common.pml"

#ifndef SWEEPS
#define SWEEPS 1
#endif
#ifndef READERS
#define READERS 1
#endif
#ifndef REPLACES
#define REPLACES 2
#endif
#ifndef ROLLBACKS
#define ROLLBACKS 1
#endif

#define OLD 1
#define MINE(j) (2 << (j))      /* the file of job 0 or 1 */
#define LOWEST(set) ((set) & (-(set)))

#define COMMIT   1
#define RELEASE  2
#define ROLLBACK 2              /* the number of the rollback among the jobs */

#define CREATE   1
#define COMPLETE 2
#define DELETE   3

#define LENGTH 8
byte size = 1;
byte kind[LENGTH];
byte snap[LENGTH];
byte ever[LENGTH];
byte freed[LENGTH];             /* what entries have released, up to each */
byte end[3];

byte objects = OLD;
byte pending;
bit retain;

bit snapshot_file_missing, released_file_referenced, deleted_unreleased, job_ended_twice, reader_reports_damage, reader_cut_off;
bit objects_are_not_the_snapshot, job_not_ended;

inline check() {
  RULE(snapshot_file_missing, (snap[size - 1] & ~objects) == 0)
}

inline create(at, what, job, add, remove) {
  if
  :: at < size -> ok = 0
  :: else ->
    kind[at] = what;
    if
    :: what == COMMIT ->
      RULE(job_ended_twice, end[job] == 0);
      end[job] = at;
      snap[at] = (snap[at - 1] & ~(remove)) | add;
      freed[at] = freed[at - 1] | (retain -> 0 : remove)
    :: else ->
      snap[at] = snap[at - 1];
      freed[at] = freed[at - 1] | remove
    fi;
    ever[at] = ever[at - 1] | snap[at];
    RULE(released_file_referenced, (snap[at] & freed[at]) == 0);
    size++; ok = 1
  fi;
  check()
}

inline complete(f) {
  if :: pending & f -> pending = pending & ~(f); objects = objects | f :: else fi
}

inline delete(f) {
  RULE(deleted_unreleased, (f & ~freed[size - 1]) == 0);
  objects = objects & ~(f);
  check()
}

proctype replacer(byte j) {
  byte base, rest;
  bit ok;

again:
  atomic {
    base = size;
    if :: end[j] != 0 -> goto ended :: else fi;
    rest = snap[base - 1]
  }
  atomic { SEND(complete(MINE(j)), COMPLETE, MINE(j), 0, 0, 0, 0) }
  atomic {
    SEND(create(base, COMMIT, j, MINE(j), rest), CREATE, base, COMMIT, j, MINE(j), rest);
    if :: ok -> goto ended :: else -> goto again fi
  }
ended:
  atomic {
    base = 0; ok = 0; rest = 0;
    if :: !retain -> rest = snap[end[j] - 1] & ~snap[end[j]] :: else fi
  }
removal:
  atomic {
    if
    :: rest != 0 -> SEND(delete(LOWEST(rest)), DELETE, LOWEST(rest), 0, 0, 0, 0); rest = rest & ~LOWEST(rest); goto removal
    :: else
    fi
  }
  goto done;
dead:
  atomic { crashed = 1; goto done }
done:
  atomic { running--; base = 0; rest = 0; ok = 0 }
}

proctype rollback() {
  byte base, rest;
  bit ok;

again:
  atomic {
    base = size; rest = 0;
    if
    :: base == 1 || end[ROLLBACK] != 0 -> goto done
#ifdef FAULT_ROLLBACK_UNCHECKED
    :: base > 1 && end[ROLLBACK] == 0 && !(objects & OLD) -> goto done       /* a look at the object is not enough */
#else
    :: base > 1 && end[ROLLBACK] == 0 && (freed[base - 1] & OLD) -> goto done
#endif
    :: else
    fi;
    rest = snap[base - 1] & ~OLD
  }
  atomic {
    SEND(create(base, COMMIT, ROLLBACK, OLD, rest), CREATE, base, COMMIT, ROLLBACK, OLD, rest);
    if :: ok :: else -> goto again fi
  }
  atomic { if :: retain -> rest = 0 :: else fi }
removal:
  atomic {
    if
    :: rest != 0 -> SEND(delete(LOWEST(rest)), DELETE, LOWEST(rest), 0, 0, 0, 0); rest = rest & ~LOWEST(rest); goto removal
    :: else
    fi
  }
  goto done;
dead:
  atomic { crashed = 1; goto done }
done:
  atomic { running--; base = 0; rest = 0; ok = 0 }
}

proctype sweeper() {
  byte base, rest;
  bit ok;

again:
  atomic { base = size; rest = ever[base - 1] & ~snap[base - 1] & ~freed[base - 1] }
#ifndef FAULT_DELETE_UNRELEASED
create_release:
  atomic {
    if
    :: rest != 0 ->
      SEND(create(base, RELEASE, 0, 0, rest), CREATE, base, RELEASE, 0, 0, rest);
      if
      :: ok -> base++
#ifdef FAULT_RELEASE_UNCHECKED
      :: else -> base++; goto create_release
#else
      :: else -> goto again
#endif
      fi
    :: else
    fi
  }
#endif
  /* Whatever is released, by this sweep or by one that died. */
  atomic { rest = (rest | freed[base - 1]) & objects }
removal:
  atomic {
    if
    :: rest != 0 -> SEND(delete(LOWEST(rest)), DELETE, LOWEST(rest), 0, 0, 0, 0); rest = rest & ~LOWEST(rest); goto removal
    :: else
    fi
  }
  goto done;
dead:
  atomic { crashed = 1; goto done }
done:
  atomic { running--; base = 0; ok = 0 }
}

/* A reader of one generation. A file that is gone was released: start again at the newest generation. */
proctype reader() {
  byte base, rest, last;

again:
  atomic {
    base = size;
#if LAG > 0
    if :: true :: lag > 0 && size > 1 -> lag--; base = size - 1 fi;
#endif
    base--
  }
  /* The newest generation: what follows a listing is found by asking for it, entry by entry. */
#ifndef FAULT_READER_TRUSTS_LISTING
  atomic { do :: base + 1 < size -> base++ :: else -> break od }
#endif
  atomic {
    do :: base > 0 && kind[base] != COMMIT -> base-- :: else -> break od;
    if
    :: last == base + 1 -> RULE(reader_reports_damage, 0)
    :: else
    fi;
    rest = snap[base]; last = base + 1
  }
fetch:
  atomic {
    if
    :: rest == 0 -> goto done
    :: rest != 0 && (objects & LOWEST(rest)) -> rest = rest & ~LOWEST(rest); goto fetch
    :: else ->
      RULE(reader_cut_off, (LOWEST(rest) & ~freed[size - 1]) == 0);
      goto again
    fi
  }
done:
  atomic { running--; base = 0; rest = 0; last = 0 }
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
      :: net[i].op == CREATE -> create(net[i].a, net[i].b, net[i].c, net[i].d, net[i].e)
      :: net[i].op == COMPLETE -> complete(net[i].a)
      :: net[i].op == DELETE -> delete(net[i].a)
      fi;
      landed(i); ok = 0
    }
  od
}
#endif

init {
  byte i;
  atomic {
#ifdef RETAIN
    retain = RETAIN;
#else
    if :: retain = 0 :: retain = 1 fi;
#endif
    snap[0] = OLD; ever[0] = OLD;
    pending = MINE(0) | (REPLACES > 1 -> MINE(1) : 0);
#if LATE > 0
    run wire();
#endif
    running = REPLACES + ROLLBACKS + SWEEPS + READERS;
    run replacer(0);
    if :: REPLACES > 1 -> run replacer(1) :: else fi;
    if :: ROLLBACKS > 0 -> run rollback() :: else fi;
    i = 0;
    do :: i < SWEEPS -> run sweeper(); i++ :: else -> break od;
    i = 0;
    do :: i < READERS -> run reader(); i++ :: else -> break od;
    i = 0
  }
  running == 0;
  mortal = 0;
  if
  :: crashed -> running = 1; run replacer(0); running == 0; if :: REPLACES > 1 -> running = 1; run replacer(1); running == 0 :: else fi
  :: else
  fi;
  if
  :: retain || crashed -> running = 1; run sweeper(); running == 0
  :: else
  fi;
  atomic {
    flying == 0 ->
    RULE(job_not_ended, end[0] != 0 && (REPLACES < 2 || end[1] != 0));
    RULE(objects_are_not_the_snapshot, objects == snap[size - 1] && pending == 0)
  }
}
