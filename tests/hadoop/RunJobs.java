import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.s3a.S3AFileSystem;
import org.apache.hadoop.fs.s3a.commit.files.PendingSet;
import org.apache.hadoop.fs.s3a.commit.files.SinglePendingCommit;
import org.apache.hadoop.fs.s3a.commit.impl.CommitOperations;
import org.apache.hadoop.fs.s3a.commit.magic.MagicS3GuardCommitter;
import org.apache.hadoop.mapreduce.JobID;
import org.apache.hadoop.mapreduce.TaskAttemptContext;
import org.apache.hadoop.mapreduce.TaskAttemptID;
import org.apache.hadoop.mapreduce.TaskID;
import org.apache.hadoop.mapreduce.TaskType;
import org.apache.hadoop.mapreduce.task.TaskAttemptContextImpl;
import software.amazon.awssdk.core.interceptor.Context;
import software.amazon.awssdk.core.interceptor.ExecutionAttributes;
import software.amazon.awssdk.core.interceptor.ExecutionInterceptor;

/**
 * Hadoop's S3A on a store of this machine.
 *
 * <p>{@code complete URI…} has Hadoop's own CommitOperations complete what pendingsets name. {@code run DESTINATION
 * JOB TASKS STOP} runs a job of the magic committer, whose tasks (comma-separated numbers, in that order) write two
 * files each. STOP is {@code never}, or {@code before:REQUEST:ENDING:N} or {@code after:…}: at its N-th request of
 * that kind for a key with that ending the process dies. The store's address is in ENDPOINT, its keys in AWS's
 * variables, and options of Hadoop in system properties that begin with {@code fs.}.
 */
public final class RunJobs {
  public static void main(String[] words) throws Exception {
    Configuration conf = new Configuration();
    conf.set("fs.s3a.endpoint", System.getenv("ENDPOINT"));
    conf.set("fs.s3a.endpoint.region", "us-east-1");
    conf.set("fs.s3a.path.style.access", "true");
    conf.set("fs.s3a.connection.ssl.enabled", "false");
    conf.set("fs.s3a.audit.execution.interceptors", Stop.class.getName());
    // One after another, so that a stop is the same in each run.
    conf.set("fs.s3a.committer.threads", "1");
    System.getProperties().stringPropertyNames().stream()
        .filter(name -> name.startsWith("fs."))
        .forEach(name -> conf.set(name, System.getProperty(name)));
    if (words[0].equals("complete")) {
      complete(conf, words);
    } else {
      Stop.at = words[4].split(":");
      run(conf, new Path(words[1]), words[2], words[3].split(","));
    }
    System.exit(0);
  }

  private static void complete(Configuration conf, String[] uris) throws Exception {
    S3AFileSystem fs = (S3AFileSystem) FileSystem.get(URI.create(uris[1]), conf);
    CommitOperations operations = new CommitOperations(fs);
    for (int n = 1; n < uris.length; n++) {
      FileStatus status = null;
      for (SinglePendingCommit commit : PendingSet.load(fs, new Path(new URI(uris[n])), status).getCommits()) {
        operations.commitOrFail(commit);
        System.out.println("completed\t" + commit.getDestinationKey());
      }
    }
  }

  private static void run(Configuration conf, Path destination, String job, String[] tasks) throws Exception {
    conf.set("fs.s3a.committer.uuid", job);
    JobID id = new JobID("202511220001", 1);
    TaskAttemptContext driver = attempt(conf, id, 0);
    MagicS3GuardCommitter committer = new MagicS3GuardCommitter(destination, driver);
    committer.setupJob(driver);
    for (String number : tasks) {
      TaskAttemptContext task = attempt(conf, id, Integer.parseInt(number));
      MagicS3GuardCommitter writer = new MagicS3GuardCommitter(destination, task);
      writer.setupTask(task);
      FileSystem fs = destination.getFileSystem(conf);
      for (String day : new String[] {"day=17", "day=18"}) {
        Path file = new Path(writer.getWorkPath(), day + "/part " + number + ".csv");
        try (FSDataOutputStream out = fs.create(file)) {
          out.write(("rows of " + day + ", " + number + "\n").getBytes(StandardCharsets.UTF_8));
        }
      }
      writer.commitTask(task);
    }
    committer.commitJob(driver);
    System.out.println("committed\t" + job);
  }

  private static TaskAttemptContext attempt(Configuration conf, JobID job, int number) {
    TaskID task = new TaskID(job, TaskType.MAP, number);
    return new TaskAttemptContextImpl(conf, new TaskAttemptID(task, 0));
  }

  /** Ends the process at a request, without a word to anybody. */
  public static final class Stop implements ExecutionInterceptor {
    static String[] at = {"never"};
    private static final AtomicInteger SEEN = new AtomicInteger();

    @Override
    public void beforeTransmission(Context.BeforeTransmission context, ExecutionAttributes attributes) {
      stop("before", context);
    }

    @Override
    public void afterTransmission(Context.AfterTransmission context, ExecutionAttributes attributes) {
      stop("after", context);
    }

    private static void stop(String moment, Context.BeforeTransmission context) {
      if (!at[0].equals(moment)) {
        return;
      }
      Optional<String> key = context.request().getValueForField("Key", String.class);
      boolean is = context.request().getClass().getSimpleName().equals(at[1] + "Request")
          && key.orElse("").endsWith(at[2]);
      if (is && SEEN.incrementAndGet() == Integer.parseInt(at[3])) {
        Runtime.getRuntime().halt(9);
      }
    }
  }
}
