package s3commit.spark;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.TimeoutException;
import org.apache.spark.SparkContext;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerApplicationEnd;
import org.apache.spark.scheduler.SparkListenerTaskEnd;

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

  /** Waits until Spark has reported the tasks that have ended. */
  static void await(SparkContext spark) {
    try {
      spark.listenerBus().waitUntilEmpty();
    } catch (TimeoutException error) {
      // Another listener is slow: the rows of some tasks stay unknown.
    }
  }

  /** Returns the rows of a task attempt; null if they are unknown. */
  Long take(long taskAttempt) {
    synchronized (rows) {
      return rows.remove(taskAttempt);
    }
  }
}
