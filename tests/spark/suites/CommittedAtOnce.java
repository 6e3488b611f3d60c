package s3commit.suites;

import java.io.IOException;
import java.io.Serializable;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.mapreduce.JobContext;
import org.apache.hadoop.mapreduce.TaskAttemptContext;
import org.apache.spark.internal.io.FileCommitProtocol;
import org.apache.spark.internal.io.FileNameSpec;
import s3commit.spark.Jobs;
import s3commit.spark.PendingCommitProtocol;
import scala.Option;

/**
 * The protocol of the jar for tests of Spark's own, which write to a disk and look at once at what they wrote.
 *
 * <p>Each write is a job of its own, on a copy of its directory in S3. A server in Python makes that copy, begins the
 * job, and ends it when the write ends; then it brings the directory on the disk to what S3 has.
 */
public final class CommittedAtOnce extends FileCommitProtocol implements Serializable {
  private static final long serialVersionUID = 1L;
  private static final String SERVER = System.getProperty("s3commit.suites.server");
  private static final String BUCKET = "s3a://lake";

  /** Jobs that have begun and not ended, by directory: Spark ends no write that fails before its set-up. */
  private static final Map<String, String> RUNNING = new ConcurrentHashMap<>();

  private final String directory;
  private final String job;
  private final PendingCommitProtocol pending;

  /** Spark looks for a constructor with these parameters. */
  public CommittedAtOnce(String writeId, String path, boolean dynamicPartitionOverwrite) {
    directory = new Path(path).toUri().getPath();
    abandon(RUNNING.get(directory));
    job = ask("begin", directory);
    RUNNING.put(directory, job);
    Jobs.begin(job, BUCKET + directory, "load", "1");
    try {
      pending = new PendingCommitProtocol(writeId, there(path).toString(), dynamicPartitionOverwrite);
    } catch (RuntimeException error) {
      abandon(job);
      throw error;
    }
  }

  private static String ask(String what, String body) {
    HttpRequest request =
        HttpRequest.newBuilder(URI.create(SERVER + "/" + what)).POST(HttpRequest.BodyPublishers.ofString(body)).build();
    try {
      HttpResponse<String> answer =
          HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
      if (answer.statusCode() != 200) {
        throw new IllegalStateException(answer.body());
      }
      return answer.body();
    } catch (IOException | InterruptedException error) {
      throw new IllegalStateException(error);
    }
  }

  private static void abandon(String job) {
    if (job != null) {
      Jobs.end(job, false, true);
      ask("abort", job);
    }
  }

  private static Path there(String path) {
    return new Path("s3a", "lake", new Path(path).toUri().getPath());
  }

  @Override
  public void setupJob(JobContext context) {
    pending.setupJob(context);
  }

  @Override
  public void commitJob(JobContext context, scala.collection.immutable.Seq<TaskCommitMessage> tasks) {
    pending.commitJob(context, tasks);
    Jobs.end(job, true, true);
    RUNNING.remove(directory);
    ask("commit", job);
  }

  @Override
  public void abortJob(JobContext context) {
    pending.abortJob(context);
    abandon(job);
  }

  @Override
  public void setupTask(TaskAttemptContext context) {
    pending.setupTask(context);
  }

  @Override
  public String newTaskTempFile(TaskAttemptContext context, Option<String> directory, FileNameSpec name) {
    return pending.newTaskTempFile(context, directory, name);
  }

  @Override
  public String newTaskTempFile(TaskAttemptContext context, Option<String> directory, String suffix) {
    return pending.newTaskTempFile(context, directory, suffix);
  }

  @Override
  public String newTaskTempFileAbsPath(TaskAttemptContext context, String directory, FileNameSpec name) {
    return pending.newTaskTempFileAbsPath(context, directory, name);
  }

  @Override
  public String newTaskTempFileAbsPath(TaskAttemptContext context, String directory, String suffix) {
    return pending.newTaskTempFileAbsPath(context, directory, suffix);
  }

  @Override
  public TaskCommitMessage commitTask(TaskAttemptContext context) {
    return pending.commitTask(context);
  }

  @Override
  public void abortTask(TaskAttemptContext context) {
    pending.abortTask(context);
  }

  @Override
  public boolean deleteWithJob(FileSystem fs, Path path, boolean recursive) {
    return pending.deleteWithJob(fs, there(path.toString()), recursive);
  }

  @Override
  public void onTaskCommit(TaskCommitMessage message) {
    pending.onTaskCommit(message);
  }
}
