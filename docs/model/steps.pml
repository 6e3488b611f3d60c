/* The log alone decides: the steps that end a job. race.pml, jobs.pml and history.pml include this file and say who runs.
   A step is named after the function that takes it; a listing and the first request about what it shows are one step. */
#include "store.pml"

/* Parts of processes. */
#define COMMITTER 0
#define ABORTER   1
#define RECOVERER 2        /* commits what is sealed, aborts what is not */
#define SWEEPER   3
#define ROLLER    4

/* What a commit takes at a head: the table's files in its partitions, and objects without a job's id in their names that
   are neither in the table nor retained. */
#ifdef FAULT_RETAINED_IS_UNOWNED
#define UNOWNED (objects & (OLD | STRANGER) & ~table[head])
#else
#define UNOWNED (objects & (OLD | STRANGER) & ~table[head] & ~IN_PLACE)
#endif
#ifdef FAULT_TAKES_BY_LISTING
#define TAKEN(j, files) (objects & WITHIN(SHIFT(j, files)) & ~MINE(j))
#elif defined(FAULT_TAKES_FIRST_PARTITION)
#define TAKEN(j, files) ((table[head] | UNOWNED) & WITHIN(SHIFT(j, files)) & ~SECOND)
#else
#define TAKEN(j, files) ((table[head] | UNOWNED) & WITHIN(SHIFT(j, files)))
#endif

/* What comes back must be in the table, or retained: by the log, not by a look at the objects. */
#ifdef FAULT_ROLLBACK_LOOKS_AT_OBJECTS
#define RESTORABLE(to) ((table[to] & ~table[head] & ~objects) == 0)
#else
#define RESTORABLE(to) ((table[to] & ~table[head] & ~retained) == 0)
#endif

/* The output of the first job was made from generation SEEN, which may be older than its base: a commit after that refuses it. */
#ifndef SEEN
#define CHANGED(j) 0
#elif defined(FAULT_BASE_COUNTS_AS_SEEN)
#define CHANGED(j) ((j) == 0 && newest >= base)
#else
#define CHANGED(j) ((j) == 0 && newest > SEEN)
#endif

#define BEGIN_LOG(set) SEND(begin_log(set), BEGIN, 0, 0, set, 0, 0); set = 0

/* append: whoever creates an entry first writes the receipt, and the version, of the newest one. */
#ifdef FAULT_NEXT_WITHOUT_RECEIPT
#define LACKS_RECEIPT 0
#else
#define LACKS_RECEIPT (who[head] != NOBODY && !HAS_RECEIPT(who[head]))
#endif
#ifdef VERSIONS
#define LACKS_VERSION(n) (version < (n))
#define PUBLISH_VERSION(n) SEND(publish(n), PUBLISH, n, 0, 0, 0, 0)
#else
#define LACKS_VERSION(n) 0
#define PUBLISH_VERSION(n) skip
#endif
#ifdef FAULT_NEXT_WITHOUT_VERSION
#define BEFORE_ENTRY_LACKS_VERSION 0
#else
#define BEFORE_ENTRY_LACKS_VERSION LACKS_VERSION(head)
#endif
#define BEFORE_ENTRY(again) \
  if \
  :: LACKS_RECEIPT -> SEND(write_receipt(who[head]), RECEIPT, who[head], 0, 0, 0, 0); goto again \
  :: !LACKS_RECEIPT && BEFORE_ENTRY_LACKS_VERSION -> PUBLISH_VERSION(head); goto again \
  :: else \
  fi

#define HAS_ENDED(j) (end[j] != 0 && end[j] >= base)
/* The job's entry is known: what follows from it. */
#define FINISH_OR_UNDO \
  base = 0; head = 0; was = 0; known = 0; files = 0; takes = 0; \
  if \
  :: kind[end[j]] == ABANDON -> goto undo \
  :: kind[end[j]] == COMMIT && part == ABORTER -> goto done \
  :: else -> takes = (RETAINS(j) -> 0 : left[end[j]]); goto finish \
  fi

/* A process that ends a job: commit, abort, the same again after a death, a sweep, or a rollback. */
proctype ender(byte part; byte j) {
  byte base;               /* that of job.json, plus 1; without a record the head that was read first */
  byte head, was;
  bit known;               /* there is a record */
  byte files;              /* those that the seal counts; of a rollback its generation */
  short takes;

#ifdef SWEEPS
  if :: part == SWEEPER -> goto sweep :: else fi;
#endif
#ifdef RETENTION
  if :: part == ROLLER -> goto plan_rollback :: else fi;
#endif
#ifdef FRESH
  atomic { if :: part == ABORTER && size == 0 -> takes = objects :: else -> goto find_job fi }
  atomic { BEGIN_LOG(takes) }
#endif
find_job:
  atomic { base = record[j]; known = base != 0 }
#ifdef FAULT_UNDO_BEFORE_ABANDON
  if :: part == ABORTER -> goto abort_pending :: else fi;
#endif
#ifdef FAULT_RECEIPT_BEFORE_HEAD
  atomic { if :: !known && HAS_RECEIPT(j) -> FINISH_OR_UNDO :: else fi }
#endif
read_log:
  atomic {
    head = size;
    if :: known :: else -> base = head fi;
    if
    :: HAS_ENDED(j) -> FINISH_OR_UNDO
    :: else
#ifdef RETENTION
    ; if :: part == ROLLER -> goto end_job :: else fi
#endif
    ; if :: known && (part == COMMITTER || (part == RECOVERER && sealed[j] != 0)) -> goto load_seal :: else fi
#ifdef FAULT_RECEIPT_BEFORE_HEAD
    ; if :: !known && part == COMMITTER -> goto done :: !known && part != COMMITTER -> goto abandon :: else fi
#endif
    fi
  }
find_end:
  /* The newest entry first, then the receipt. */
  atomic {
    if
    :: HAS_RECEIPT(j) -> FINISH_OR_UNDO
    :: !HAS_RECEIPT(j) && part == COMMITTER -> goto done
    :: else -> goto abandon
    fi
  }
load_seal:
  atomic {
    files = sealed[j];
    if
    :: files == 0 -> head = size; if :: HAS_ENDED(j) -> FINISH_OR_UNDO :: else -> goto done fi
    :: else
    fi;
    /* This and mode fail are judged before anything is published: the job stays open. They are judged again at each try. */
    if
    :: CHANGED(j) || (mode[j] == FAIL && TAKEN(j, files) != 0) ->
      crashed = 1; files = 0;
      if :: part == RECOVERER -> goto abandon :: else -> goto done fi
    :: else
    fi;
    takes = SHIFT(j, files)
  }
#ifdef FAULT_DELETE_BEFORE_ENTRY
  atomic { if :: mode[j] == REPLACE -> SEND(delete(LOWEST(table[head])), DELETE, 0, 0, LOWEST(table[head]), 0, 0) :: else fi }
#endif
complete_uploads:
  /* By its pendingset, which may be gone. */
  atomic {
    if :: (staged & LOWEST(takes)) == 0 -> takes = 0; files = 0; goto abandon :: true fi;
    SEND(complete(LOWEST(takes)), COMPLETE, 0, 0, LOWEST(takes), 0, 0);
    if
    :: objects & LOWEST(takes) -> takes = takes & ~LOWEST(takes)
    :: else -> takes = 0; files = 0; goto abandon
    fi;
    if :: takes != 0 -> goto complete_uploads :: else fi
  }
end_job:
  atomic {
    BEFORE_ENTRY(end_job);
#ifdef FAULT_TAKEN_ONCE
    if :: was == 1 -> goto create_commit :: else -> was = 1 fi;
#endif
    takes = 0;
    if :: CHANGED(j) -> files = 0; goto abandon :: else fi;
    if
    :: mode[j] == APPEND
    :: mode[j] == REPLACE -> takes = TAKEN(j, files)
#ifdef RETENTION
#ifdef FAULT_ROLLBACK_IGNORES_COMMIT
    :: mode[j] == RESTORE -> takes = was
#else
    :: mode[j] == RESTORE -> if :: newest != was || !RESTORABLE(files) -> was = 0; files = 0; goto abandon :: else -> takes = was fi
#endif
#endif
#ifdef FAULT_FAIL_JUDGED_ONCE
    :: mode[j] == FAIL
#else
    :: mode[j] == FAIL -> if :: TAKEN(j, files) != 0 -> files = 0; takes = 0; goto abandon :: else fi
#endif
    fi
#ifdef FAULT_TAKEN_ONCE
  }
create_commit:
  atomic {
#else
    ;
#endif
    SEND(create(head + 1, COMMIT, j, takes, files), CREATE, head + 1, COMMIT, takes, j, files);
    head = size;
    if :: HAS_ENDED(j) -> FINISH_OR_UNDO :: else -> goto end_job fi
  }

abandon:
  atomic {
    BEFORE_ENTRY(abandon);
    RULE(living_job_ended_by_sweep, part != SWEEPER || patience || record[j] == 0 || end[j] != 0);
    SEND(create(head + 1, ABANDON, j, 0, 0), CREATE, head + 1, ABANDON, 0, j, 0);
    head = size;
    if :: HAS_ENDED(j) -> FINISH_OR_UNDO :: else -> goto abandon fi
  }

finish:
#ifdef FAULT_MARKER_DELETED
  atomic { if :: marked < end[j] -> was = marked :: else fi }
  atomic { if :: marked == was -> marked = 0 :: else fi }
#endif
#if defined(VERSIONS) && !defined(FAULT_VERSION_AFTER_DELETIONS)
  atomic { if :: LACKS_VERSION(end[j]) -> PUBLISH_VERSION(end[j]) :: else fi }
#endif
delete_objects:
  atomic {
    if
    :: takes != 0 ->
      SEND(delete(LOWEST(takes)), DELETE, 0, 0, LOWEST(takes), 0, 0);
      takes = takes & ~LOWEST(takes);
      goto delete_objects
    :: else
    fi;
#ifdef FAULT_VERSION_AFTER_DELETIONS
    if :: LACKS_VERSION(end[j]) -> PUBLISH_VERSION(end[j]); goto delete_objects :: else fi;
#endif
    /* write_marker */
    was = marked;
#ifndef FAULT_MARKER_OVER_NEWER
    if :: was >= end[j] -> was = 0; goto undo :: else fi
#endif
  }
  atomic {
    SEND(mark(was, end[j]), MARK, was, end[j], 0, 0, 0);
    was = 0;
    if :: ok :: else -> goto delete_objects fi
  }

undo:
  /* Here finish goes on too: the receipt before uploads are listed, so what a task attempt uploads later finds it. */
  atomic { if :: !HAS_RECEIPT(j) -> SEND(write_receipt(j), RECEIPT, j, 0, 0, 0, 0) :: else fi }
#ifdef FAULT_OBJECTS_BEFORE_UPLOADS
  goto published;
#endif
abort_pending:
  atomic {
    takes = (pending | second) & MINE(j);
    if
    :: takes != 0 -> SEND(abort_upload(LOWEST(takes)), STOP, 0, 0, LOWEST(takes), 0, 0); takes = 0; goto abort_pending
    :: else
    fi
  }
#ifdef FAULT_OBJECTS_BEFORE_UPLOADS
  goto clean;
#endif
published:
  /* Objects after uploads: else a late completion brings one back. None was completed of a job that was never sealed. */
  atomic {
    if
    :: kind[end[j]] == ABANDON && sealed[j] != 0 ->
#ifdef FAULT_UNDO_BY_NAME
      takes = objects & MINE(j)
#else
      takes = objects & MINE(j) & ~named
#endif
    :: else
    fi;
    if
    :: takes != 0 -> SEND(delete(LOWEST(takes)), DELETE, 0, 0, LOWEST(takes), 0, 0); takes = 0; goto published
    :: else
    fi
  }
#ifdef FAULT_OBJECTS_BEFORE_UPLOADS
  goto abort_pending;
#endif
clean:
  /* The record goes last: as long as it is there, the job is found among those to be finished. */
  atomic {
    takes = staged & MINE(j);
    if
    :: takes != 0 -> SEND(unstage(takes), UNSTAGE, 0, 0, takes, 0, 0)
    :: takes == 0 && sealed[j] != 0 -> SEND(drop(SEALED, j), DROP, SEALED, j, 0, 0, 0)
    :: takes == 0 && sealed[j] == 0 && record[j] != 0 -> SEND(drop(RECORD, j), DROP, RECORD, j, 0, 0, 0)
    :: else -> goto done
    fi;
    takes = 0; goto clean
  }

#ifdef RETENTION
plan_rollback:
  atomic {
    head = size; was = newest;
    /* Any older generation. A file that would come back is looked at, too. */
    files = 1; do :: files + 1 < newest -> files++ :: break od;
    do :: files > 1 && kind[files] != COMMIT -> files-- :: else -> break od;
    if
    :: table[files] == table[head] || !RESTORABLE(files) || (table[files] & ~objects) != 0 -> goto done
    :: else
    fi
  }
  atomic { SEND(set_up(j, head), SET_UP, j, head, 0, 0, 0) }
  atomic { if :: HAS_RECEIPT(j) -> SEND(drop(RECORD, j), DROP, RECORD, j, 0, 0, 0); goto done :: else fi }
  goto find_job;
#endif

#ifdef SWEEPS
sweep:
  /* What is there first, then job.json by its key, then the log, then the receipt. */
#ifdef FAULT_SWEEP_LISTS_RECORDS_FIRST
  atomic { base = record[j]; known = base != 0 }
  atomic { takes = (pending | second | staged | objects) & MINE(j); files = sealed[j]; if :: !takes && !files && !known -> goto done :: else fi }
#else
  atomic { takes = (pending | second | staged | objects) & MINE(j); files = sealed[j]; if :: !takes && !files && !record[j] -> goto done :: else fi }
  atomic { base = record[j]; known = base != 0 }
#endif
  atomic {
    head = size;
    if :: head == 0 -> goto done :: else fi;                  /* no log: no job was set up */
    if :: known :: else -> base = head fi;
    if :: HAS_ENDED(j) -> FINISH_OR_UNDO :: else fi;
#ifndef FAULT_UNDO_BY_NAME
    if :: !known && !files && (takes & ~(objects & named)) == 0 -> goto done :: else fi;
#endif
    takes = 0; files = 0
  }
  atomic {
    if
    :: HAS_RECEIPT(j) -> FINISH_OR_UNDO
    :: !HAS_RECEIPT(j) && known && !patience -> goto done     /* it lives */
#ifdef FAULT_SWEEP_WITHOUT_ENTRY
    :: !HAS_RECEIPT(j) && !known -> goto abort_pending
#endif
    :: else -> goto abandon
    fi
  }
#endif

dead:
  crashed = 1;
done:
  atomic { running--; base = 0; head = 0; was = 0; known = 0; files = 0; takes = 0 }
}
