package s3commit.spark;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.TimeoutException;
import org.apache.spark.SparkContext;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerApplicationEnd;
import org.apache.spark.scheduler.SparkListenerTaskEnd;
import org.slf4j.LoggerFactory;

/** Rows that the tasks of an application wrote, as Spark counts them when a task has committed. */
final class RowCounter extends SparkListener {
  /** Task attempts to remember: those of the running writes must be among them. */
  private static final int MOST = 500_000;

  private static SparkContext counted;
  private static RowCounter counter;

  private final Map<Long, Long> rows =
      new LinkedHashMap<Long, Long>() {
        private static final long serialVersionUID = 1L;

        @Override
        protected boolean removeEldestEntry(Map.Entry<Long, Long> eldest) {
          return size() > MOST;
        }
      };

  private RowCounter() {}

  /** Returns the counter of an application; the first call starts it. */
  static synchronized RowCounter of(SparkContext spark) {
    if (counted != spark) {
      counted = spark;
      counter = new RowCounter();
      spark.addSparkListener(counter);
    }
    return counter;
  }

  @Override
  public void onTaskEnd(SparkListenerTaskEnd end) {
    if (end.taskMetrics() != null) {
      synchronized (rows) {
        rows.put(end.taskInfo().taskId(), end.taskMetrics().outputMetrics().recordsWritten());
      }
    }
  }

  /** Also called when the JVM ends in an application that did not stop its context. */
  @Override
  public void onApplicationEnd(SparkListenerApplicationEnd end) {
    Driver.end();
  }

  /**
   * Waits until Spark has reported the tasks that have ended.
   *
   * @param write The write, for a message: its job, number and path.
   * @param tasks The number of its tasks.
   */
  static void await(SparkContext spark, String write, int tasks) {
    try {
      spark.listenerBus().waitUntilEmpty();
    } catch (TimeoutException error) {
      RowCounter counted = of(spark);
      synchronized (counted.rows) {
        LoggerFactory.getLogger(RowCounter.class)
            .warn(
                "{}: Spark was to report the rows of its {} tasks. After 10 seconds it has reported {} task attempts of"
                    + " the application, because a listener of the application is slow. The commit counts no rows of"
                    + " the others, and refuses those without a file. Run the stage again without that listener"
                    + " (spark.extraListeners) if you need the rows",
                write,
                tasks,
                counted.rows.size());
      }
    }
  }

  /** Returns, and forgets, the rows of a task attempt; null if they are unknown. */
  Long take(long taskAttempt) {
    synchronized (rows) {
      return rows.remove(taskAttempt);
    }
  }
}
