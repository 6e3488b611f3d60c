package s3commit.spark;

import java.io.IOException;
import java.io.Serializable;
import java.io.UncheckedIOException;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Optional;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.mapreduce.JobContext;
import org.apache.hadoop.mapreduce.TaskAttemptContext;
import org.apache.spark.SparkEnv;
import org.apache.spark.internal.io.FileCommitProtocol;
import org.apache.spark.internal.io.FileNameSpec;
import scala.Option;

/**
 * Spark's file commit protocol for writes whose uploads a job of airflow-s3commit commits later.
 *
 * <p>Writes at or below the destination of one of the driver's {@link Jobs} stay pending; another protocol, by
 * default Spark's own, commits all other writes. It has no dependencies except for Spark and hadoop-aws. Spark
 * creates an instance for each write on the driver, and sends it to the tasks.
 */
public final class PendingCommitProtocol extends FileCommitProtocol implements Serializable {
  private static final long serialVersionUID = 1L;

  /** The key of the class that commits all other writes, whose default is EMR's own on EMR, else Spark's own. */
  private static final String OTHERWISE = "spark.s3commit.pending.otherwise";

  private static final String EMRS_OWN =
      "org.apache.spark.sql.execution.datasources.SQLEmrOptimizedCommitProtocol";

  private static final String SPARKS_OWN =
      "org.apache.spark.sql.execution.datasources.SQLHadoopMapReduceCommitProtocol";

  /** The pending write; null if the write is not for a job. */
  private final PendingWrite pending;

  /** The protocol of any other write; null if the write is for a job. */
  private final FileCommitProtocol other;

  /** The driver's jobs, whose files no other write may change. */
  private final ArrayList<PendingJob> jobs;

  /** Spark looks for a constructor with these parameters. */
  public PendingCommitProtocol(String writeId, String path, boolean dynamicPartitionOverwrite) {
    jobs = Jobs.all();
    Optional<PendingJob> job = Jobs.of(jobs, path);
    // Here, because Spark deletes what a write overwrites before it sets the write up.
    if (!job.isPresent()) {
      refuse(PendingJob.below(jobs, path), path);
    }
    pending = job.isPresent() ? new PendingWrite(job.get(), writeId, path, dynamicPartitionOverwrite) : null;
    other =
        job.isPresent()
            ? null
            : FileCommitProtocol.instantiate(
                otherwise(), writeId, path, dynamicPartitionOverwrite);
  }

  private static String otherwise() {
    String inherent = SPARKS_OWN;
    try {
      Class.forName(EMRS_OWN, false, Thread.currentThread().getContextClassLoader());
      inherent = EMRS_OWN;
    } catch (ClassNotFoundException error) {
      // This is not EMR's Spark.
    }
    return SparkEnv.get().conf().get(OTHERWISE, inherent);
  }

  /** Refuses to write to, or to delete, a directory with files of a job. */
  private static void refuse(Optional<PendingJob> found, String directory) {
    found.ifPresent(
        job -> {
          throw new UnsupportedOperationException(
              "job " + job.id + " writes to " + job.destination + ", and this write to " + directory
                  + " would change files or records there at once, not when the job commits: write to the job's"
                  + " destination or to another directory, or write in an application without the job");
        });
  }

  @Override
  public void setupJob(JobContext context) {
    if (pending == null) {
      other.setupJob(context);
    } else {
      run(() -> pending.setUp(context.getConfiguration()));
    }
  }

  @Override
  public void commitJob(JobContext context, scala.collection.immutable.Seq<TaskCommitMessage> tasks) {
    if (pending == null) {
      commitOther(context, tasks);
    } else {
      run(() -> pending.seal(context.getConfiguration(), tasks.iterator()));
    }
  }

  /** The same with the signature of Scala 2.12, whose {@code Seq} is another type. */
  public void commitJob(JobContext context, scala.collection.Seq<TaskCommitMessage> tasks) {
    commitJob(context, tasks.toList());
  }

  private void commitOther(JobContext context, Object tasks) {
    // By name, because the type of the second parameter is Scala's: of 2.12 or of 2.13.
    for (Method method : FileCommitProtocol.class.getMethods()) {
      if (method.getName().equals("commitJob")) {
        try {
          method.invoke(other, context, tasks);
        } catch (InvocationTargetException error) {
          throw PendingCommitProtocol.<RuntimeException>unchecked(error.getCause());
        } catch (IllegalAccessException error) {
          throw new IllegalStateException(error);
        }
      }
    }
  }

  /** Throws any error as it is: Scala's methods declare none. */
  @SuppressWarnings("unchecked")
  static <E extends Throwable> E unchecked(Throwable error) throws E {
    throw (E) error;
  }

  /** Leaves the uploads pending: they are in no seal, so the job's commit or abort aborts them. */
  @Override
  public void abortJob(JobContext context) {
    if (pending == null) {
      other.abortJob(context);
    } else {
      pending.end();
    }
  }

  @Override
  public void setupTask(TaskAttemptContext context) {
    if (pending == null) {
      other.setupTask(context);
    } else {
      run(() -> pending.setUpTask(context.getConfiguration()));
    }
  }

  @Override
  public String newTaskTempFile(TaskAttemptContext context, Option<String> directory, FileNameSpec name) {
    return pending == null
        ? other.newTaskTempFile(context, directory, name)
        : pending.newFile(
            context, directory.isDefined() ? directory.get() : "", name.prefix(), name.suffix());
  }

  @Override
  public String newTaskTempFile(TaskAttemptContext context, Option<String> directory, String suffix) {
    return newTaskTempFile(context, directory, new FileNameSpec("", suffix));
  }

  @Override
  public String newTaskTempFileAbsPath(TaskAttemptContext context, String directory, FileNameSpec name) {
    if (pending == null) {
      refuse(PendingJob.overlapping(jobs, directory), directory);
      return other.newTaskTempFileAbsPath(context, directory, name);
    }
    throw pending.refuseElsewhere(directory);
  }

  @Override
  public String newTaskTempFileAbsPath(TaskAttemptContext context, String directory, String suffix) {
    return newTaskTempFileAbsPath(context, directory, new FileNameSpec("", suffix));
  }

  @Override
  public TaskCommitMessage commitTask(TaskAttemptContext context) {
    return pending == null
        ? other.commitTask(context)
        : new TaskCommitMessage(call(() -> pending.commitTask(context.getConfiguration())));
  }

  @Override
  public void abortTask(TaskAttemptContext context) {
    if (pending == null) {
      other.abortTask(context);
    } else {
      run(() -> pending.abortTask(context.getConfiguration()));
    }
  }

  /** Notes what the job's commit replaces, and deletes nothing. */
  @Override
  public boolean deleteWithJob(FileSystem fs, Path path, boolean recursive) {
    if (pending == null) {
      refuse(PendingJob.overlapping(jobs, path.toString()), path.toString());
      return other.deleteWithJob(fs, path, recursive);
    }
    pending.replace(path);
    return true;
  }

  @Override
  public void onTaskCommit(TaskCommitMessage message) {
    if (pending == null) {
      other.onTaskCommit(message);
    }
  }

  private interface Call<T> {
    T run() throws IOException;
  }

  private interface Action {
    void run() throws IOException;
  }

  private static <T> T call(Call<T> call) {
    try {
      return call.run();
    } catch (IOException error) {
      throw new UncheckedIOException(error.getMessage(), error);
    }
  }

  private static void run(Action action) {
    call(
        () -> {
          action.run();
          return null;
        });
  }
}
