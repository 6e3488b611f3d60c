/* `_SUCCESS` in a partition: derived from the log after a commit's entry. One partition, and jobs that add files to it, replace
   its files, empty it, or commit elsewhere. */
#include "common.pml"

#ifndef COMMIT_A
#define COMMIT_A 1         /* processes that commit job 0 */
#endif

#define JOBS   3
#define LENGTH 4

#define ADD     0
#define REPLACE 1
#define EMPTY   2
#define OTHER   3

byte mode[JOBS];
#define ADDS(j)    (mode[j] == ADD || mode[j] == REPLACE)
#define REMOVES(j) (mode[j] == REPLACE || mode[j] == EMPTY)
#define FILE(j)    (ADDS(j) -> 1 << (j) : 0)

byte size = 1;
byte who[LENGTH];
byte removed[LENGTH];
byte snap[LENGTH];
byte end[JOBS];
bit published[JOBS];
bit finished[JOBS];

byte objects;
byte marked;               /* generation that the marker names, which stands for its ETag too; 0 where there is none */

bit snapshot_file_missing, partition_marker_not_newest, job_not_ended, objects_are_not_the_snapshot;

inline check() {
  RULE(snapshot_file_missing, (snap[size - 1] & ~objects) == 0)
}

inline remove_marker(was) {
  if :: marked == was -> marked = 0 :: else fi
}

proctype committer(byte j) {
  byte n, m;
  bit emptied;

  atomic {
    if :: published[j] || end[j] != 0 :: else -> published[j] = 1; objects = objects | FILE(j) fi;
    if :: true :: mortal -> goto dead fi
  }
  atomic {
    if
    :: end[j] != 0
    :: else ->
      who[size] = j; end[j] = size;
      removed[size] = (REMOVES(j) -> snap[size - 1] : 0);
      snap[size] = (snap[size - 1] & ~removed[size]) | FILE(j);
      size++;
      check()
    fi;
    if :: true :: mortal -> goto dead fi
  }
  n = end[j];
  /* Older markers go before files do. */
#ifndef FAULT_MARKERS_KEPT
#ifdef FAULT_MARKERS_ANY_REMOVED
  atomic { if :: removed[n] != 0 -> m = marked :: else fi }
#else
  atomic { if :: removed[n] != 0 && marked < n -> m = marked :: else fi }
#endif
  atomic { remove_marker(m); m = 0; if :: true :: mortal -> goto dead fi }
#endif
  atomic { objects = objects & ~removed[n]; check(); if :: true :: mortal -> goto dead fi }
  if :: ADDS(j) :: else -> goto written fi;
write:
  atomic {
    m = marked;
#ifndef FAULT_MARKERS_OLDER_OVER_NEWER
    if :: m >= n -> goto look :: else fi
#endif
  }
  atomic {
    if
    :: marked == m -> marked = n; if :: true :: mortal -> goto dead fi
    :: else -> goto write
    fi
  }
look:
  /* A later commit may have emptied the partition before the marker came. */
#ifndef FAULT_MARKERS_UNLOOKED
  atomic {
    m = n + 1;
    do
#ifdef FAULT_MARKERS_TRUST_LISTING
    :: m < size && m > n + 1 && lag > 0 -> lag--; break    /* the next entry is found by its key, the others by a listing */
#endif
    :: m < size -> if :: REMOVES(who[m]) -> emptied = 1 :: else fi; m++
    :: m >= size -> break
    od;
    m = 0
  }
#ifdef FAULT_MARKERS_OWN_LEFT
  atomic { if :: emptied && marked < n -> m = marked :: else fi }
#else
  atomic { if :: emptied && marked <= n -> m = marked :: else fi }
#endif
  atomic { remove_marker(m); if :: true :: mortal -> goto dead fi }
#endif
written:
  atomic { finished[j] = 1; goto done }
dead:
  crashed = 1;
done:
  atomic { running--; n = 0; m = 0; emptied = 0 }
}

/* Any mode from that of a job before on: where jobs differ in nothing else, which one has which makes no difference. */
inline any_mode(j, least) {
  mode[j] = least;
  do :: mode[j] < OTHER -> mode[j]++ :: break od
}

init {
  byte i;
  atomic {
    any_mode(0, ADD); any_mode(1, (COMMIT_A > 1 -> ADD : mode[0])); any_mode(2, mode[1]);
    do :: i < COMMIT_A -> running++; run committer(0); i++ :: else -> break od;
    running++; run committer(1);
    running++; run committer(2);
    i = 0
  }
  running == 0;
  mortal = 0; lag = 0;
  do
  :: i < JOBS ->
    if :: !finished[i] -> atomic { running++; run committer(i) } running == 0 :: else fi;
    i++
  :: else -> break
  od;
  atomic {
    RULE(job_not_ended, finished[0] && finished[1] && finished[2]);
    RULE(objects_are_not_the_snapshot, objects == snap[size - 1]);
    i = size - 1;
    do :: i > 0 && mode[who[i]] == OTHER -> i-- :: else -> break od;
    RULE(partition_marker_not_newest, (i > 0 && ADDS(who[i]) -> marked == i : marked == 0))
  }
}
