package s3commit.spark;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import org.apache.spark.SparkContext;
import org.apache.spark.SparkEnv;
import org.apache.spark.sql.SparkSession;
import org.slf4j.LoggerFactory;

/**
 * The jobs of this driver: those of the Spark conf, which last as long as the application, and those that Python
 * begins and ends while it runs.
 */
public final class Jobs {
  /** Spark's local property with the id of the job that a thread writes for. */
  private static final String OF_THREAD = "spark.s3commit.pending.now";

  private static final Map<String, PendingJob> BEGUN = new LinkedHashMap<>();

  /** Running writes for jobs that Python has begun, each as the job's id, a slash and the write. */
  private static final Set<String> RUNNING = new HashSet<>();

  private Jobs() {}

  /** Assigns writes at or below a destination to a job. */
  public static synchronized void begin(String id, String destination, String stage, String stageAttempt) {
    PendingJob job = new PendingJob(id, destination, stage, stageAttempt, null);
    PendingJob.overlapping(PendingJob.ofConf(SparkEnv.get().conf()), destination)
        .filter(other -> !other.id.equals(id))
        .ifPresent(
            other -> {
              throw new IllegalArgumentException(
                  "job " + other.id + " of the Spark conf writes to " + other.destination + ", so there can be no job for "
                      + destination + ": write with a DataFrame writer, and its owner commits");
            });
    if (BEGUN.putIfAbsent(id, job) != null) {
      throw new IllegalArgumentException("another thread writes for job " + id + ": give each write a job or a turn");
    }
  }

  /**
   * Ends what {@link #begin} began. If the job is complete, all of its writes must have ended.
   *
   * @param isOver Whether nothing will be written for the job any more, by anybody.
   */
  public static synchronized void end(String id, boolean isComplete, boolean isOver) {
    long running = RUNNING.stream().filter(write -> write.startsWith(id + "/")).count();
    BEGUN.remove(id);
    if (isOver) {
      RUNNING.removeIf(write -> write.startsWith(id + "/"));
      Driver.forget(id);
      PendingWrite.forget(id);
    }
    if (isComplete && running > 0) {
      throw new IllegalStateException(
          running + " writes for job " + id + " are still running in other threads, and the commit would miss their"
              + " rows: wait for them (Thread.join) before the job ends");
    }
  }

  /** Makes a session drop, after a commit, what it has listed or cached of a destination's files. */
  public static void refresh(SparkSession session, String destination) {
    try {
      for (String scheme : Arrays.asList("s3a", "s3", "s3n")) {
        if (session.sparkContext().hadoopConfiguration().get("fs." + scheme + ".impl") != null) {
          session.catalog().refreshByPath(scheme + destination.substring(destination.indexOf(':')));
        }
      }
      session.sessionState().catalog().invalidateAllCachedTables();
    } catch (Exception error) {
      LoggerFactory.getLogger(Jobs.class)
          .warn("{} is committed, but the session may show it as it was: spark.catalog.clearCache()", destination, error);
    }
  }

  /** Notes that a write has begun; refuses it if Python has ended its job meanwhile. */
  static synchronized void start(PendingJob job, String write) {
    if (BEGUN.containsKey(job.id)) {
      RUNNING.add(job.id + "/" + write);
    } else if (PendingJob.ofConf(SparkEnv.get().conf()).stream().noneMatch(one -> one.id.equals(job.id))) {
      throw new IllegalStateException("job " + job.id + " ended before this write began: write within the job");
    }
  }

  static synchronized void finish(PendingJob job, String write) {
    RUNNING.remove(job.id + "/" + write);
  }

  /** Returns all jobs, on the driver. */
  static synchronized ArrayList<PendingJob> all() {
    Map<String, PendingJob> found = new TreeMap<>();
    PendingJob.ofConf(SparkEnv.get().conf()).forEach(job -> found.put(job.id, job));
    found.putAll(BEGUN);
    return new ArrayList<>(found.values());
  }

  /** Returns which of some jobs a write of this thread to a path is for; empty if none. */
  static Optional<PendingJob> of(List<PendingJob> jobs, String path) {
    List<PendingJob> found = PendingJob.nearest(jobs, path);
    if (found.size() < 2) {
      return found.stream().findFirst();
    }
    String mine = SparkContext.getOrCreate().getLocalProperty(OF_THREAD);
    Optional<PendingJob> own = found.stream().filter(job -> job.id.equals(mine)).findFirst();
    if (!own.isPresent()) {
      throw new UnsupportedOperationException(
          found.size() + " jobs write to " + found.get(0).destination + ", and this thread has begun none of them: write"
              + " in the thread of the job, or wait until the others have ended");
    }
    return own;
  }
}
