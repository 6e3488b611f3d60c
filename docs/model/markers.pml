/* `_SUCCESS` in a partition: derived from the log after an entry. One partition, and jobs that add files to it, empty it, commit
   elsewhere, or roll it back. These markers are deleted, so an older one may come back for a moment: only rest is judged. */
#include "common.pml"

#define JOBS   3
#define LENGTH (JOBS + 1)

#define ADD   0            /* to it, or in place of its files */
#define EMPTY 1
#define OTHER 2
#define BACK  3            /* to the generation before the newest, or to that before the log */

byte mode[JOBS];
byte size;                 /* number of the newest entry */
bit has[LENGTH];           /* the partition has files */
bit touches[LENGTH];       /* the entry says something of it */
byte end[JOBS];
bit derived[JOBS];

byte marked;               /* generation that the marker names; 0 without one */
byte etag;                 /* no ETag comes twice */
byte written;

bit partition_marker_wrong, partition_marker_not_newest;

inline write(was, n) { if :: etag == was -> written++; marked = n; etag = written; ok = 1 :: else -> ok = 0 fi }
inline remove(was) { if :: etag == was -> marked = 0; etag = 0 :: else fi }
hidden byte ok;

inline dies() { if :: true :: mortal -> goto dead fi }

/* derive_markers, after the job's entry. */
proctype commit(byte j) {
  byte head, was;

  atomic {
    if
    :: end[j] != 0
    :: else ->
      size++; end[j] = size; touches[size] = 1; has[size] = has[size - 1];
      if
      :: mode[j] == ADD -> has[size] = 1
      :: mode[j] == EMPTY -> has[size] = 0
      :: mode[j] == OTHER -> touches[size] = 0
      :: mode[j] == BACK ->
        if :: size > 1 -> has[size] = has[size - 2] :: has[size] = 0 fi;
        touches[size] = has[size] != has[size - 1]
      fi
    fi;
    dies()
  }
  if :: touches[end[j]] :: else -> goto finished fi;
read_table:
  head = size;
derive:
  atomic {
    was = etag;
    if
#ifdef FAULT_OWN_ENTRY_DECIDES
    :: has[end[j]] ->
#else
    :: has[head] ->
#endif
#ifndef FAULT_OLDER_OVER_NEWER
      if :: marked >= end[j] -> goto look :: else fi
#else
      skip
#endif
    :: else ->
      /* One of a later entry than those that were read stays: that entry is found by the look. */
#ifdef FAULT_DELETES_LATER_ONE
      if :: was == 0 -> goto look :: else -> goto delete fi
#else
      if :: was == 0 || marked > head -> goto look :: else -> goto delete fi
#endif
    fi
  }
  atomic { write(was, end[j]); dies(); if :: ok :: else -> goto derive fi }
  goto look;
delete:
#ifdef FAULT_DELETES_ANY
  was = etag;
#endif
  atomic { remove(was); dies() }
look:
  /* Write, then look. */
#ifndef FAULT_DOES_NOT_LOOK
  atomic {
    was = 0;
    do
    :: head < size -> head++; was = was || touches[head]
    :: else -> break
    od;
    if :: was -> was = 0; goto derive :: else fi
  }
#endif
finished:
  atomic { derived[j] = 1; goto done }
dead:
  crashed = 1;
done:
  atomic { running--; head = 0; was = 0 }
}

init {
  byte i;
  atomic {
    do
    :: i < JOBS -> if :: mode[i] = ADD :: mode[i] = EMPTY :: mode[i] = OTHER :: mode[i] = BACK fi; running++; run commit(i); i++
    :: else -> break
    od;
    i = 0
  }
  running == 0;
  mortal = 0;
  do
  :: i < JOBS -> if :: !derived[i] -> atomic { running++; run commit(i) } running == 0 :: else fi; i++
  :: else -> break
  od;
  atomic {
    i = size;
    do :: i > 0 && !touches[i] -> i-- :: else -> break od;
    RULE(partition_marker_wrong, (marked != 0) == has[size]);
    RULE(partition_marker_not_newest, !has[size] || marked == i)
  }
}
