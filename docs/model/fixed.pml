/* Fixed file names: `begin`, helping, `lost`. A and B replace one partition under fixed keys, C appends a file of its own.
   A writes key 0; B writes keys 0 and 1; C writes key 2. */
#include "common.pml"

#ifndef COMMIT_A
#define COMMIT_A 1
#endif
#ifndef ABORT_A
#define ABORT_A 0
#endif
#ifndef COMMIT_B
#define COMMIT_B 1
#endif
#ifndef COMMIT_C
#define COMMIT_C 0
#endif

#define JOBS 3
#define KEYS 3
#define A 0
#define B 1
#define C 2

/* What lies at the keys: three bits each, 0 for nothing, else the object's ETag. */
#define AT(all, k)      (((all) >> (3 * (k))) & 7)
#define PUT(all, k, c)  (((all) & ~(7 << (3 * (k)))) | ((c) << (3 * (k))))
#define OLD_ETAG 1
#ifdef FAULT_SAME_ETAG
#define ETAG(j) ((j) == B -> OLD_ETAG : (j) + 2)   /* B writes the bytes that were there before */
#else
#define ETAG(j) ((j) + 2)
#endif
#define WRITES(j, k) ((j) == A -> (k) == 0 : ((j) == B -> (k) < 2 : (k) == 2))
#define BIT(j, k) (1 << ((j) * KEYS + (k)))

#define COMMIT   1
#define ABANDON  2
#define BEGIN    3
#define LOST     4

#define COMMITTER 0
#define ABORTER   1
#define RECOVERER 2

#define CREATE   1
#define COMPLETE 2
#define ABORT    3
#define DELETE   4

#define LENGTH 8
byte size = 1;
byte kind[LENGTH];
short snap[LENGTH];
byte end[JOBS];
byte begun[JOBS];
short removed[JOBS];       /* pinned by `begin`: keys and ETags of what the job replaces and does not write itself */
short before[JOBS];        /* what lay at the keys when it began */

short objects;
short pending;
short expired;
byte doomed;

bit snapshot_file_missing, job_ended_twice, replace_leaves_older_data, neither_generation, lost_without_cause, two_begun;
bit begun_without_upload, given_up_without_cause;
bit job_not_ended, upload_pending_at_rest, objects_are_not_the_snapshot;

#define ENDED(j, n)     (end[j] != 0 && end[j] < (n))
#define ABANDONED(j, n) (ENDED(j, n) && kind[end[j]] == ABANDON)
#define OPEN(j, n)      (begun[j] != 0 && begun[j] < (n) && !ENDED(j, n))

inline check() {
  if
  :: !OPEN(A, size) && !OPEN(B, size) ->
    RULE(snapshot_file_missing, (AT(snap[size - 1], 0) == 0 || AT(objects, 0) == AT(snap[size - 1], 0)) && (AT(snap[size - 1], 1) == 0 || AT(objects, 1) == AT(snap[size - 1], 1)) && (AT(snap[size - 1], 2) == 0 || AT(objects, 2) == AT(snap[size - 1], 2)))
  :: else ->
    RULE(neither_generation, AT(objects, 0) != 0)
  fi
}

inline create(at, what, job, gone) {
  if
  :: at < size -> ok = 0
  :: else ->
    kind[at] = what;
    if
    :: what == BEGIN ->
      RULE(two_begun, !OPEN(A, at) && !OPEN(B, at));
      RULE(begun_without_upload, !(gone));
      begun[job] = at; snap[at] = snap[at - 1]; before[job] = snap[at - 1];
      removed[job] = PUT(snap[at - 1], 0, 0);
      if :: job == B -> removed[job] = PUT(removed[job], 1, 0) :: else fi
    :: what == ABANDON ->
      RULE(job_ended_twice, end[job] == 0);
      RULE(given_up_without_cause, ABORT_A || (expired & (7 << (KEYS * job))) != 0);
      end[job] = at; snap[at] = snap[at - 1]
    :: else ->
      RULE(job_ended_twice, end[job] == 0);
      end[job] = at;
      snap[at] = snap[at - 1];
      if
      :: job == C -> snap[at] = PUT(snap[at], 2, ETAG(C))
      :: else ->
        /* Whatever came before in the log is replaced, where nothing was lost. */
        if :: (gone & 1) == 0 -> snap[at] = PUT(snap[at], 0, ETAG(job)) :: else fi;
        if
        :: job == B && (gone & 2) == 0 -> snap[at] = PUT(snap[at], 1, ETAG(job))
        :: job == A && what == COMMIT -> snap[at] = PUT(snap[at], 1, 0)
        :: else
        fi;
        if
        :: what == COMMIT ->
          RULE(replace_leaves_older_data, AT(snap[at - 1], 2) == AT(removed[job], 2));
          snap[at] = PUT(snap[at], 2, 0)
        :: else
        fi;
        RULE(lost_without_cause, (((gone) << (KEYS * job)) & ~expired) == 0)
      fi
    fi;
    size++; ok = 1
  fi;
  check()
}

inline complete(job, k) {
  if
  :: pending & BIT(job, k) -> pending = pending & ~BIT(job, k); objects = PUT(objects, k, ETAG(job))
#ifdef FAULT_STORE_REVIVES
  :: else -> objects = PUT(objects, k, ETAG(job))
#else
  :: else
#endif
  fi;
  check()
}

inline abort_upload(job, k) { pending = pending & ~BIT(job, k) }

/* A delete on the condition of the ETag. */
inline delete(k, etag) {
  if :: (etag) != 0 && AT(objects, k) == (etag) -> objects = PUT(objects, k, 0) :: else fi;
  check()
}

proctype actor(byte part; byte j) {
  byte base, k, d, gone;
  bit ok;
#ifdef FAULT_BEGIN_BEFORE_SETUP
  byte from;
#endif
#ifdef EXPIRY
  bit missed;              /* ghost: an upload had expired when this process looked */
#endif

again:
  atomic {
    k = 0; gone = 0; d = j; ok = 0;
    base = size;
#ifdef FAULT_BEGIN_BEFORE_SETUP
    if :: from == 0 -> from = size :: else fi;
#endif
    if
    :: ABANDONED(j, base) -> if :: part == COMMITTER -> goto done :: else -> goto undo fi
    :: ENDED(j, base) && !ABANDONED(j, base) -> if :: j == C || part == ABORTER -> goto done :: else -> goto removal fi
    :: else ->
      if
#ifdef FAULT_ABORT_AFTER_BEGIN
      :: part == ABORTER -> goto abandon
#else
      :: part == ABORTER && OPEN(j, base) -> goto done     /* `begin` is the point of no return */
      :: part == ABORTER && !OPEN(j, base) -> goto abandon
#endif
      :: OPEN(j, base) && part != ABORTER -> goto drive
#ifdef FAULT_NOBODY_HELPS
      :: part == COMMITTER && (j != A && OPEN(A, base) || j != B && OPEN(B, base)) -> goto await
#endif
#ifdef FAULT_APPEND_IGNORES_BEGIN
#define WAITS (part != ABORTER && j != C)
#else
#define WAITS (part != ABORTER)
#endif
#ifdef FAULT_BEGIN_BEFORE_SETUP
#define SEEN(x) (begun[x] >= from)   /* a job reads the log from its setup on, and no entry says what began before */
#else
#define SEEN(x) true
#endif
      :: WAITS && j != A && OPEN(A, base) && SEEN(A) -> d = A; goto drive
      :: WAITS && j != B && OPEN(B, base) && SEEN(B) -> d = B; goto drive
      :: else
      fi
    fi
  }
  if
  :: j == C -> goto append
  :: else
  fi;
#ifdef EXPIRY
  /* Before the point of no return: the uploads are there. What a listing lacks may be completed, by a twin that began. */
  atomic {
    gone = 0; k = 0; missed = ((expired & (7 << (KEYS * j))) != 0);
    do
    :: k < 2 -> if :: WRITES(j, k) && !(pending & BIT(j, k)) -> gone = gone | (1 << k) :: else fi; k++
    :: else -> k = 0; break
    od
  }
  atomic {
    if :: (gone & 1) && AT(objects, 0) == ETAG(j) -> gone = gone & 2 :: else fi;
    if :: (gone & 2) && AT(objects, 1) == ETAG(j) -> gone = gone & 1 :: else fi
  }
#ifndef FAULT_BEGIN_UNCHECKED
  atomic {
    if
    :: gone && (begun[j] != 0 || end[j] != 0) -> missed = 0; goto again
    :: gone && begun[j] == 0 && end[j] == 0 -> gone = 0; missed = 0; goto abandon
    :: else
    fi
  }
#endif
#define MISSED missed
#else
#define MISSED 0
#endif
  atomic {
    gone = 0;
    SEND(create(base, BEGIN, j, MISSED), CREATE, base, BEGIN, j, MISSED, 0);
#ifdef EXPIRY
    missed = 0;
#endif
    if :: ok -> goto drive :: else -> goto again fi
  }
#ifdef FAULT_NOBODY_HELPS
await:
  atomic { !OPEN(A, size) && !OPEN(B, size) -> goto again }
#endif

drive:
  /* Job d has begun: any process takes any of its steps. */
  k = 0;
next_upload:
  atomic {
    if
    :: WRITES(d, k) ->
      SEND(complete(d, k), COMPLETE, d, k, 0, 0, 0);
      if
      :: AT(objects, k) == ETAG(d)
      :: else ->
        /* The upload is gone: lost, unless the job was ended meanwhile. */
        gone = gone | (1 << k)
      fi
    :: else
    fi;
    k++;
    if :: k < 2 -> goto next_upload :: else fi
  }
  atomic { base = size; if :: ENDED(d, base) -> goto driven :: else fi }
create_end:
  atomic {
    if
    :: gone -> SEND(create(base, LOST, d, gone), CREATE, base, LOST, d, gone, 0)
    :: else -> SEND(create(base, COMMIT, d, 0), CREATE, base, COMMIT, d, 0, 0)
    fi;
    if :: ok -> goto driven :: else -> base++; if :: ENDED(d, base) :: else -> goto create_end fi fi
  }
driven:
  atomic { gone = 0; k = 0; if :: d != j -> goto again :: else fi }
removal:
  if
  :: kind[end[j]] == COMMIT ->
next_removal:
    atomic {
      if
      :: k < KEYS && AT(removed[j], k) == 0 -> k++; goto next_removal
      :: k < KEYS && AT(removed[j], k) != 0 -> SEND(delete(k, AT(removed[j], k)), DELETE, k, AT(removed[j], k), 0, 0, 0); k++; goto next_removal
      :: else
      fi
    }
  :: else
  fi;
  goto done;

append:
  atomic {
    SEND(complete(C, 2), COMPLETE, C, 2, 0, 0, 0);
    if :: AT(objects, 2) == ETAG(C) :: else -> if :: end[C] != 0 -> goto done :: else fi fi
  }
  atomic {
    SEND(create(base, COMMIT, C, 0), CREATE, base, COMMIT, C, 0, 0);
    if :: ok -> goto done :: else -> goto again fi
  }

abandon:
  atomic {
    SEND(create(base, ABANDON, j, 0), CREATE, base, ABANDON, j, 0, 0);
    if :: ok :: else -> goto again fi
  }
undo:
  k = 0;
next_abort:
  atomic {
    if
    :: k < KEYS && WRITES(j, k) -> SEND(abort_upload(j, k), ABORT, j, k, 0, 0, 0)
    :: else
    fi;
#ifdef FAULT_ABORT_AFTER_BEGIN
    if :: k < KEYS && WRITES(j, k) -> delete(k, ETAG(j)) :: else fi;
#endif
    k++;
    if :: k < KEYS -> goto next_abort :: else fi
  }
  goto done;
dead:
  atomic { crashed = 1; goto done }
done:
  atomic {
    running--; base = 0; k = 0; d = 0; gone = 0; ok = 0;
#ifdef EXPIRY
    missed = 0
#endif
  }
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
      :: net[i].op == CREATE -> create(net[i].a, net[i].b, net[i].c, net[i].d)
      :: net[i].op == COMPLETE -> complete(net[i].a, net[i].b)
      :: net[i].op == ABORT -> abort_upload(net[i].a, net[i].b)
      :: net[i].op == DELETE -> delete(net[i].a, net[i].b)
      fi;
      landed(i); ok = 0
    }
  od
}
#endif

#ifdef EXPIRY
/* A lifecycle rule of the bucket: it aborts one upload of job A or B, at any time. */
proctype lifecycle() {
end_wait:
  if
  :: atomic { mortal && (pending & BIT(A, 0)) -> pending = pending & ~BIT(A, 0); expired = BIT(A, 0) }
  :: atomic { mortal && (pending & BIT(B, 1)) -> pending = pending & ~BIT(B, 1); expired = BIT(B, 1) }
  fi
}
#endif

inline cast(n, part, j) {
  i = 0;
  do :: i < n -> running++; run actor(part, j); i++ :: else -> break od
}

init {
  byte i;
  atomic {
    objects = PUT(PUT(0, 0, OLD_ETAG), 1, OLD_ETAG);
    snap[0] = objects;
    if :: COMMIT_A -> pending = pending | BIT(A, 0) :: else fi;
    if :: COMMIT_B -> pending = pending | BIT(B, 0) | BIT(B, 1) :: else fi;
    if :: COMMIT_C -> pending = pending | BIT(C, 2) :: else fi;
#if LATE > 0
    run wire();
#endif
#ifdef EXPIRY
    run lifecycle();
#endif
    cast(COMMIT_A, COMMITTER, A);
    cast(ABORT_A, ABORTER, A);
    cast(COMMIT_B, COMMITTER, B);
    cast(COMMIT_C, COMMITTER, C);
    i = 0
  }
  running == 0;
  mortal = 0;
  if
  :: crashed ->
    if :: COMMIT_A -> running = 1; run actor(RECOVERER, A); running == 0 :: else fi;
    if :: COMMIT_B -> running = 1; run actor(RECOVERER, B); running == 0 :: else fi;
    if :: COMMIT_C -> running = 1; run actor(RECOVERER, C); running == 0 :: else fi
  :: else
  fi;
  atomic {
    flying == 0 ->
    RULE(job_not_ended, (end[A] != 0 || !COMMIT_A) && (end[B] != 0 || !COMMIT_B) && (end[C] != 0 || !COMMIT_C));
    RULE(upload_pending_at_rest, pending == 0);
    RULE(objects_are_not_the_snapshot, objects == snap[size - 1])
  }
}
