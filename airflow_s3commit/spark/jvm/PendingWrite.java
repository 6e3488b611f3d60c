package s3commit.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.ByteArrayOutputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.io.Serializable;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.IOUtils;
import org.apache.hadoop.mapreduce.TaskAttemptContext;
import org.apache.spark.SparkContext;
import org.apache.spark.TaskContext;
import org.apache.spark.internal.io.FileCommitProtocol.TaskCommitMessage;
import org.apache.spark.sql.SaveMode;
import org.apache.spark.sql.SparkSession;
import scala.Option;

/**
 * One write of an application for a job.
 *
 * <p>S3A leaves a file as a pending upload if its path has an element {@code __magic_job-…}, and remembers the
 * upload in the memory of the task's process. The path also has an element {@code __base}: what follows it is the
 * file's path below the destination. A committed task lists its uploads in a {@code .pendingset}, written at once.
 * The driver's seal lists the tasks that count.
 */
final class PendingWrite implements Serializable {
  private static final long serialVersionUID = 1L;

  private static final ObjectMapper JSON = new ObjectMapper();

  private static final String IN_MEMORY = "fs.s3a.committer.magic.track.commits.in.memory.enabled";
  private static final String MULTIPART = "fs.s3a.multipart.uploads.enabled";
  private static final String PURGE = "fs.s3a.multipart.purge";

  private static final int MAX_KEY_BYTES = 1024;

  /** Spark's local property of threads that run a batch of a streaming query. */
  private static final String BATCH = "streaming.sql.batchId";

  /** Writes of this driver that are sealed. */
  private static final AtomicInteger SEALED = new AtomicInteger();

  /** Directories that this driver has sealed writes to, each prefixed with its job's id and a slash. */
  private static final Set<String> WRITTEN = ConcurrentHashMap.newKeySet();

  private final PendingJob job;
  private final String path;
  private final boolean dynamic;

  /** Digits that tell this write from others: part of the names of its tasks and files. */
  private final String token;

  /** Directories below the destination that Spark would have deleted before the write; "" for all of it. */
  private final TreeSet<String> replaced = new TreeSet<>();

  /** The columns of the files and their partitions, as records keep them; null if unknown. */
  private String columns;

  /** On the driver, the directory of its seals of the stage attempt, which it takes before its first write. */
  private transient Path seals;

  /** Keys of the files that Spark named for the task attempt. */
  private transient Set<String> files;

  PendingWrite(PendingJob job, String writeId, String path, boolean dynamic) {
    this.job = job;
    this.path = path;
    this.dynamic = dynamic;
    String digits = UUID.nameUUIDFromBytes(writeId.getBytes(StandardCharsets.UTF_8)).toString();
    token = digits.replace("-", "").substring(0, 12);
  }

  /** Checks, on the driver, that the tasks' files will stay pending, and begins to count their rows. */
  void setUp(Configuration conf) throws IOException {
    SparkContext spark = SparkContext.getOrCreate();
    RowCounter.of(spark);
    InsertMark insert =
        InsertMark.of(conf)
            .orElseThrow(
                () ->
                    refusal(
                        "nothing in its session says what it overwrites, or keeps Spark from deleting tables of"
                            + " jobs: spark.sql.extensions must have " + CatalogGuard.class.getName()
                            + " when the session starts, and the jar must be there then (--jars)"));
    if (spark.getLocalProperty(BATCH) != null || isOfStream()) {
      throw refusal(
          "a streaming query writes it, whose checkpoint would count the batch as written even if the job is"
              + " aborted: use airflow_s3commit.spark.foreach_batch, which commits each batch");
    }
    check(conf);
    boolean publishes = checkRecord(conf).path("publishes").asBoolean();
    columns = insert.columns == null ? null : WrittenColumns.below(insert.columns, job.relative(path).get());
    String lacking = publishes ? WrittenColumns.notInDelta(columns) : null;
    if (lacking != null) {
      throw refusal("its table is published, and " + lacking);
    }
    seals = driverHome(conf);
    SaveMode mode = insert.mode;
    if (mode == SaveMode.Overwrite && !dynamic) {
      replace(new Path(path + insert.directory));
    } else if (mode != SaveMode.Append && !dynamic && replaced.isEmpty() && isWritten(job, path)) {
      throw refusal(
          "an earlier write of the application to " + path + " is pending, and Spark does not see it (" + mode
              + "): name the mode append or overwrite, or make the directory the destination of a job of its own");
    }
    Optional<String> ended = isRestartable(spark) ? Optional.empty() : Driver.ended(seals.getFileSystem(conf), seals);
    if (ended.isPresent()) {
      throw refusal(
          "driver " + ended.get() + " has written for stage attempt " + job.stage + "-" + job.stageAttempt
              + " before, and was not killed, so nothing tells whether this one's output replaces or joins it: give"
              + " each submission a stage of its own, or run the whole stage again, as a new attempt");
    }
    Jobs.start(job, token);
  }

  /** Notes that the write has ended. */
  void end() {
    Jobs.finish(job, token);
  }

  static void forget(String job) {
    WRITTEN.removeIf(slot -> slot.startsWith(job + "/"));
  }

  /** Whether the session is that of a running streaming query, as in a thread that a batch's function starts. */
  private static boolean isOfStream() {
    Option<SparkSession> active = SparkSession.getActiveSession();
    if (active.isEmpty()) {
      return false;
    }
    try {
      for (Object query : active.get().sharedState().activeStreamingQueries().values()) {
        // By name, because the types depend on the release. Before its first batch a query has no execution.
        Object last = query.getClass().getMethod("lastExecution").invoke(query);
        if (last != null && last.getClass().getMethod("sparkSession").invoke(last) == active.get()) {
          return true;
        }
      }
    } catch (ReflectiveOperationException | LinkageError error) {
      // This Spark has other names; then only the thread of a batch is recognised.
    }
    return false;
  }

  /**
   * Whether a cluster manager may have started this driver in place of one that failed. The stage's seal knows YARN's
   * attempts; a driver that a standalone cluster supervises would be restarted for ever if it were refused here.
   */
  private static boolean isRestartable(SparkContext spark) {
    return spark.applicationAttemptId().isDefined() || spark.getConf().getBoolean("spark.driver.supervise", false);
  }

  /** Whether this driver has sealed a write of the job to this directory, to one above it, or below it. */
  private static boolean isWritten(PendingJob job, String path) {
    String here = slot(job, path);
    return WRITTEN.stream().anyMatch(there -> here.startsWith(there) || there.startsWith(here));
  }

  private static String slot(PendingJob job, String path) {
    String below = job.relative(path).get();
    return job.id + "/" + (below.isEmpty() ? "" : below + "/");
  }

  /**
   * Refuses to write for a job without a record, and for a job whose uploads nobody could find by their keys.
   *
   * @return The record.
   */
  private JsonNode checkRecord(Configuration conf) throws IOException {
    Path record = job.inDestination(new Path(path).toUri().getScheme(), "_s3commit", "open", job.id, "job.json");
    try (InputStream in = record.getFileSystem(conf).open(record)) {
      ByteArrayOutputStream copy = new ByteArrayOutputStream();
      IOUtils.copyBytes(in, copy, 4096, false);
      byte[] body = copy.toByteArray();
      if (job.recordSha256 != null && !job.recordSha256.equals(Records.sha256(body))) {
        throw refusal(record + " was changed after the job was set up: its SHA-256 is not " + job.recordSha256);
      }
      JsonNode known = JSON.readTree(body);
      if (!known.path("options").path("track_pending").asText("task").equals("task")) {
        throw refusal(
            "its option track_pending is s3, and S3A records no upload when it starts: use writer=\"python\", or a"
                + " store that lists pending uploads by prefix");
      }
      return known;
    } catch (FileNotFoundException error) {
      throw isEnded(conf) ? refuseEnded() : refuseGone(record);
    }
  }

  /** The receipt, which appears when the job ends, and is never deleted: no other record of an end is needed here. */
  private Path receipt() {
    return job.inDestination(new Path(path).toUri().getScheme(), "_s3commit", "jobs", job.id + ".json");
  }

  private boolean isEnded(Configuration conf) throws IOException {
    return Records.exists(receipt().getFileSystem(conf), receipt());
  }

  private UnsupportedOperationException refuseEnded() {
    return refusal("the job has ended, as " + receipt() + " says: set up a new job, and run the application for it");
  }

  private UnsupportedOperationException refuseGone(Path record) {
    return refusal(
        record + " is gone: the job has ended, or something deleted its directory, such as"
            + " model.write().overwrite().save() of this application. Set up a new job, and write such things"
            + " to another directory");
  }

  private void check(Configuration conf) throws IOException {
    Path home = new Path(path);
    FileSystem fs = home.getFileSystem(conf);
    if (!fs.getClass().getName().equals("org.apache.hadoop.fs.s3a.S3AFileSystem")) {
      throw refusal(
          path + " is a path of " + fs.getClass().getName() + ", and only S3A can leave uploads pending: use"
              + " s3a://, or set spark.hadoop.fs." + home.toUri().getScheme()
              + ".impl=org.apache.hadoop.fs.s3a.S3AFileSystem");
    }
    Configuration settings = fs.getConf();
    if (!settings.getBoolean(Records.MAGIC, true)) {
      throw refusal(Records.MAGIC + " is false, so S3A would publish the files at once: set it to true");
    }
    if (!settings.getBoolean(MULTIPART, true)) {
      throw refusal(MULTIPART + " is false, so S3A would write the files at once: set it to true");
    }
    if (settings.getBoolean(PURGE, false)) {
      throw refusal(PURGE + " is true, so S3A would abort pending uploads of any job: set it to false");
    }
    if (!PendingUploads.canBeKnown(fs)) {
      throw refusal("its hadoop-aws is too old: 3.4.1 or newer is needed");
    }
    if (!settings.getBoolean(IN_MEMORY, false)) {
      throw refusal(
          IN_MEMORY + " is false, so S3A would ask the store for each file: set it to true, as committer_conf does");
    }
  }

  private UnsupportedOperationException refusal(String reason) {
    return new UnsupportedOperationException("job " + job.id + " cannot commit this write later: " + reason);
  }

  UnsupportedOperationException refuseElsewhere(String directory) {
    return refusal(
        "it goes to the partition's own location " + directory + ", and S3A leaves only files below "
            + job.destination + " pending: give the partition its default location");
  }

  /** Notes that the commit replaces what a directory holds. */
  void replace(Path directory) {
    replaced.add(job.relative(directory.toString()).orElseThrow(() -> refuseElsewhere(directory.toString())));
  }

  void setUpTask(Configuration conf) throws IOException {
    files = new LinkedHashSet<>();
    check(conf);
  }

  /**
   * Returns the path of a new file of the running task attempt.
   *
   * <p>Spark names files by the values of a partition, and several values can have one directory: a null and
   * the text that stands for it, or both hours that the end of summer time repeats. So a name that the attempt
   * has given out before gets a number.
   */
  String newFile(TaskAttemptContext context, String directory, String prefix, String suffix) {
    int split = context.getTaskAttemptID().getTaskID().getId();
    String name;
    int number = 0;
    do {
      String again = number == 0 ? "" : number + "-";
      name = prefix + String.format(Locale.ROOT, "part-%05d-%s-%s%s", split, token, again, job.id) + suffix;
      number++;
    } while (!files.add(key(directory, name)));
    return place(taskFile("/__base"), directory, name).toString();
  }

  /** Returns the key that a file has after the commit. */
  private String key(String directory, String name) {
    String key = place(job.inDestination(new Path(path).toUri().getScheme()), directory, name).toUri().getPath();
    checkKey(job.relative(path).get() + "/" + directory, key.substring(1));
    return key.substring(1);
  }

  /** Returns a file's path below a directory that stands for the destination. */
  private Path place(Path home, String directory, String name) {
    Path file = home;
    for (String element : (job.relative(path).get() + "/" + directory + "/" + name).split("/")) {
      // Not Path(String, String), for which a colon ends a scheme.
      file = element.isEmpty() ? file : new Path(file, new Path(null, null, element));
    }
    return file;
  }

  /** Refuses, in the task, a file that no listing shows: at the seal it would be too late to find its upload. */
  private void checkKey(String directory, String key) {
    for (int at = 0; at < directory.length(); at++) {
      char sign = directory.charAt(at);
      boolean paired = Character.isSurrogate(sign) && directory.codePointAt(at) > Character.MAX_VALUE;
      at += paired ? 1 : 0;
      boolean isAlone = Character.isSurrogate(sign) && !paired;
      if (sign < 0x20 || sign == 0x7f || sign == '\\' || sign >= 0xfffe || isAlone) {
        throw refusal(
            String.format(
                Locale.ROOT,
                "its path or a partition value has the character U+%04X, which no listing of S3 can name: replace it",
                (int) sign));
      }
    }
    if (PendingJob.isHidden(directory)) {
      throw refusal("readers skip the directory " + directory + ": rename its column, or replace the partition value");
    }
    int bytes = key.getBytes(StandardCharsets.UTF_8).length;
    if (bytes > MAX_KEY_BYTES) {
      throw refusal(
          "the key of a file in " + directory + " has " + bytes + " bytes, and S3's keys end at "
              + MAX_KEY_BYTES + ": shorten the partition values, or use a destination with a shorter path");
    }
  }

  private Path taskFile(String suffix) {
    return inStage("tasks", attemptName() + suffix);
  }

  private String attemptName() {
    TaskContext task = TaskContext.get();
    return taskName(task) + "_" + task.taskAttemptId();
  }

  private String taskName(TaskContext task) {
    return String.format(Locale.ROOT, "%s-%05d", token, task.partitionId());
  }

  private Path inStage(String... names) {
    String[] all = new String[names.length + 2];
    all[0] = "stages";
    all[1] = job.stage + "-" + job.stageAttempt;
    System.arraycopy(names, 0, all, 2, names.length);
    return job.inStaging(new Path(path).toUri().getScheme(), all);
  }

  /**
   * Lists the uploads of the task attempt in its pendingset, and returns what the driver's seal says of it.
   *
   * <p>It does not check whether the job has ended: S3A cannot take uploads back, so a sweep does, by the pendingset.
   */
  String commitTask(Configuration conf) throws IOException {
    TaskContext task = TaskContext.get();
    FileSystem fs = new Path(path).getFileSystem(conf);
    ObjectNode pendingset = JSON.createObjectNode().put("version", 3).put("jobId", job.id);
    ArrayNode commits = pendingset.putArray("commits");
    long bytes = 0;
    Set<String> missing = new LinkedHashSet<>(files);
    String unknown = null;
    for (ObjectNode upload : PendingUploads.take(fs, attemptName())) {
      String key = upload.get("destinationKey").asText();
      if (!missing.remove(key)) {
        // Here, because its key need not tell a later abort which job's upload it is.
        PendingUploads.abort(fs, upload);
        unknown = key;
      }
      bytes += upload.get("length").asLong();
      commits.add(plain(upload));
    }
    if (unknown != null) {
      throw refusal(
          "its format has written " + unknown + ", which is none of the files that Spark named for the task: write in"
              + " another format");
    }
    // Spark names a task's first file before its first row; any further file has a row.
    if (!missing.isEmpty() && files.size() > 1) {
      throw refusal("S3A has no upload of " + missing.size() + " of the " + files.size() + " files of a task");
    }
    String attempt = Long.toString(task.taskAttemptId());
    ObjectNode extra =
        pendingset
            .putObject("s3commit")
            .put("stage", job.stage)
            .put("stage_attempt", job.stageAttempt)
            .put("task", taskName(task))
            .put("attempt", attempt)
            .put("nonce", UUID.randomUUID().toString());
    if (columns != null) {
      extra.putArray("schemas").add(columns);
    }
    byte[] body = JSON.writeValueAsBytes(pendingset);
    Records.write(fs, taskFile(".pendingset"), body);
    return JSON.createObjectNode()
        .put("task", taskName(task))
        .put("attempt", attempt)
        .put("sha256", Records.sha256(body))
        .put("files", commits.size())
        .put("named", files.size())
        .put("bytes", bytes)
        .toString();
  }

  /** Aborts the uploads of the task attempt. Those of a killed attempt stay pending until the job ends. */
  void abortTask(Configuration conf) throws IOException {
    FileSystem fs = new Path(path).getFileSystem(conf);
    for (ObjectNode upload : PendingUploads.take(fs, attemptName())) {
      PendingUploads.abort(fs, upload);
    }
  }

  /** Returns an upload with the job's id, without the quotes that HTTP puts around ETags. */
  private ObjectNode plain(ObjectNode upload) {
    ArrayNode etags = JSON.createArrayNode();
    for (JsonNode etag : upload.get("etags")) {
      if (etag.isTextual()) {
        etags.add(etag.asText().replace("\"", ""));
      } else {
        etags.add(((ObjectNode) etag).put("etag", etag.get("etag").asText().replace("\"", "")));
      }
    }
    upload.remove("iostatistics");
    upload.put("jobId", job.id).set("etags", etags);
    return upload;
  }

  /** Writes the driver's seal: which task attempts of the write count, and what it replaces. */
  void seal(Configuration conf, scala.collection.Iterator<TaskCommitMessage> messages) throws IOException {
    SparkContext spark = SparkContext.getOrCreate();
    int number = SEALED.incrementAndGet();
    ObjectNode seal = JSON.createObjectNode().put("version", 1).put("job_id", job.id);
    seal.put("stage", job.stage).put("stage_attempt", job.stageAttempt);
    seal.put("application", spark.applicationId()).put("spark", spark.version());
    Option<String> applicationAttempt = spark.applicationAttemptId();
    seal.put("application_attempt", applicationAttempt.isDefined() ? applicationAttempt.get() : null);
    seal.put("write", number).put("directory", job.relative(path).get());
    seal.put("dynamic", dynamic);
    ArrayNode directories = seal.putArray("replaced");
    replaced.forEach(directories::add);
    ArrayNode tasks = seal.putArray("tasks");
    List<ObjectNode> committed = new ArrayList<>();
    while (messages.hasNext()) {
      committed.add((ObjectNode) JSON.readTree((String) messages.next().obj()));
    }
    RowCounter.await(spark, "job " + job.id + ", write " + number + " to " + path, committed.size());
    for (ObjectNode task : committed) {
      Long rows = RowCounter.of(spark).take(task.get("attempt").asLong());
      long uploads = task.get("files").asLong();
      long named = task.remove("named").asLong();
      if (rows == null ? uploads < named : rows > 0 && uploads == 0) {
        throw refusal(
            "task " + task.get("task").asText() + " has written " + (rows == null ? "an unknown number of" : rows)
                + " rows to " + named + " files, and S3A has left " + uploads + " uploads of it pending: run the stage"
                + " again, and if it fails again write in another format");
      }
      tasks.add(task.put("rows", rows));
    }
    if (!Driver.isLast(seals.getFileSystem(conf), seals, this::refuseGone)) {
      throw refusal(
          "another driver has begun to write for stage attempt " + job.stage + "-" + job.stageAttempt
              + " after this one, so that one's output counts: end this application");
    }
    Path file = new Path(seals, String.format(Locale.ROOT, "%06d.json", number));
    if (!record(conf, file, JSON.writeValueAsBytes(seal))) {
      throw refuseEnded();
    }
    Driver.hasSealed(seals, (end, body) -> record(conf, end, body.getBytes(StandardCharsets.UTF_8)));
    WRITTEN.add(slot(job, path));
    end();
  }

  /** Writes a record of this driver, and returns whether it stays: after the end of the job nobody would remove it. */
  private boolean record(Configuration conf, Path file, byte[] body) throws IOException {
    Records.writeOutside(conf, file, body);
    // Written first: either this sees the receipt, or what ends the job sees the record.
    if (!isEnded(conf)) {
      return true;
    }
    file.getFileSystem(conf).delete(file, false);
    return false;
  }

  private Path driverHome(Configuration conf) throws IOException {
    Path drivers = inStage("spark");
    return Driver.home(
        drivers.getFileSystem(conf),
        drivers,
        (file, body) -> {
          if (!record(conf, file, body.getBytes(StandardCharsets.UTF_8))) {
            throw refuseEnded();
          }
        },
        this::refuseGone);
  }
}
