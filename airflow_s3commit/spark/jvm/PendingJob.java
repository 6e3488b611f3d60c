package s3commit.spark;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.hadoop.fs.Path;
import org.apache.spark.SparkConf;
import scala.Tuple2;

/** A job that Spark's own writers write for, and the stage attempt of the application in it. */
final class PendingJob implements Serializable {
  private static final long serialVersionUID = 1L;

  /** Start of the keys of the conf; the job's id and one of the names below follow. */
  private static final String PREFIX = "spark.s3commit.pending.job.";

  final String id;
  final String destination;
  final String stage;
  final String stageAttempt;

  /** SHA-256 of the job's record, by which any other record is refused; null if the conf has none. */
  final String recordSha256;

  PendingJob(String id, String destination, String stage, String stageAttempt, String recordSha256) {
    this.id = id;
    this.destination = destination;
    this.stage = stage;
    this.stageAttempt = stageAttempt;
    this.recordSha256 = recordSha256;
  }

  private static String value(SparkConf conf, String id, String name) {
    String key = PREFIX + id + "." + name;
    if (!conf.contains(key)) {
      throw new IllegalArgumentException(
          "the Spark conf has no " + key + "; set all keys that committer_conf(..., writer=\"spark\") returns");
    }
    return conf.get(key);
  }

  /** Returns the jobs in a conf. */
  static List<PendingJob> ofConf(SparkConf conf) {
    TreeSet<String> ids = new TreeSet<>();
    for (Tuple2<String, String> entry : conf.getAllWithPrefix(PREFIX)) {
      ids.add(entry._1().substring(0, entry._1().indexOf('.')));
    }
    List<PendingJob> found = new ArrayList<>();
    for (String id : ids) {
      found.add(
          new PendingJob(
              id,
              value(conf, id, "destination"),
              value(conf, id, "stage"),
              value(conf, id, "attempt"),
              conf.get(PREFIX + id + ".sha256", null)));
    }
    return found;
  }

  /** Returns a job that writes at, below or above a directory. */
  static Optional<PendingJob> overlapping(List<PendingJob> jobs, String directory) {
    Optional<PendingJob> below = below(jobs, directory);
    return below.isPresent() ? below : nearest(jobs, directory).stream().findFirst();
  }

  /** Returns a job whose destination is below a directory. */
  static Optional<PendingJob> below(List<PendingJob> jobs, String directory) {
    List<String> there = elements(directory);
    return jobs.stream()
        .filter(
            job -> {
              List<String> home = elements(job.destination);
              return !there.isEmpty() && there.size() < home.size() && home.subList(0, there.size()).equals(there);
            })
        .findFirst();
  }

  /** Returns the jobs with the longest destination that a path is at or below; none if readers skip the path. */
  static List<PendingJob> nearest(List<PendingJob> jobs, String path) {
    List<PendingJob> around =
        jobs.stream().filter(job -> job.relative(path).isPresent()).collect(Collectors.toList());
    int longest = around.stream().mapToInt(job -> elements(job.destination).size()).max().orElse(0);
    return around.stream()
        .filter(job -> elements(job.destination).size() == longest && !isHidden(job.relative(path).get()))
        .collect(Collectors.toList());
  }

  /**
   * Returns whether readers of datasets skip a path: an element begins with ".", or with "_" and is no _column=value,
   * or ends like a file that is being copied.
   */
  static boolean isHidden(String path) {
    for (String element : path.split("/")) {
      if (element.startsWith(".")
          || (element.startsWith("_") && !element.contains("="))
          || element.endsWith("._COPYING_")) {
        return true;
      }
    }
    return false;
  }

  /** Returns a path relative to the destination, without slashes at its ends; empty if it is elsewhere. */
  Optional<String> relative(String path) {
    List<String> home = elements(destination);
    List<String> there = elements(path);
    if (home.isEmpty() || there.size() < home.size() || !there.subList(0, home.size()).equals(home)) {
      return Optional.empty();
    }
    return Optional.of(String.join("/", there.subList(home.size(), there.size())));
  }

  /** Returns the bucket and the elements of the key; none if a URI is not S3's. */
  private static List<String> elements(String uri) {
    List<String> found = new ArrayList<>();
    // Hadoop's own Path: it takes %, ? and # literally, as its file systems do.
    java.net.URI parsed = new Path(uri).toUri();
    String scheme = parsed.getScheme();
    if (scheme == null || !(scheme.equals("s3") || scheme.equals("s3a") || scheme.equals("s3n"))) {
      return found;
    }
    found.add(parsed.getAuthority());
    for (String element : parsed.getPath().split("/")) {
      if (!element.isEmpty()) {
        found.add(element);
      }
    }
    return found;
  }

  /** Returns a path below the job's staging, with the scheme that the application uses. */
  Path inStaging(String scheme, String... names) {
    return new Path(inDestination(scheme, "__magic_job-" + id), String.join("/", names));
  }

  /** Returns a path below the job's destination, with the scheme that the application uses. */
  Path inDestination(String scheme, String... names) {
    List<String> home = elements(destination);
    String above = home.subList(1, home.size()).stream().map(element -> "/" + element).collect(Collectors.joining());
    return new Path(scheme, home.get(0), above + "/" + String.join("/", names));
  }
}
