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

/** A job in the Spark conf, and the stage attempt of the application in it. */
final class PendingJob implements Serializable {
  private static final long serialVersionUID = 1L;

  /** Start of the keys of the conf; the job's id and one of the names below follow. */
  private static final String PREFIX = "spark.s3commit.pending.job.";

  final String id;
  final String destination;
  final String stage;
  final String stageAttempt;

  private PendingJob(SparkConf conf, String id) {
    this.id = id;
    destination = value(conf, "destination");
    stage = value(conf, "stage");
    stageAttempt = value(conf, "attempt");
  }

  private String value(SparkConf conf, String name) {
    String key = PREFIX + id + "." + name;
    if (!conf.contains(key)) {
      throw new IllegalArgumentException(
          "the Spark conf has no " + key + "; set all keys that committer_conf(..., writer=\"spark\") returns");
    }
    return conf.get(key);
  }

  /** Returns the jobs in a conf. */
  private static List<PendingJob> all(SparkConf conf) {
    TreeSet<String> ids = new TreeSet<>();
    for (Tuple2<String, String> entry : conf.getAllWithPrefix(PREFIX)) {
      ids.add(entry._1().substring(0, entry._1().indexOf('.')));
    }
    List<PendingJob> found = new ArrayList<>();
    for (String id : ids) {
      found.add(new PendingJob(conf, id));
    }
    return found;
  }

  /** Returns a job that writes at, below or above a directory. */
  static Optional<PendingJob> overlapping(SparkConf conf, String directory) {
    Optional<PendingJob> below = below(conf, directory);
    return below.isPresent() ? below : of(conf, directory);
  }

  /** Returns a job whose destination is below a directory. */
  static Optional<PendingJob> below(SparkConf conf, String directory) {
    List<String> there = elements(directory);
    for (PendingJob job : all(conf)) {
      List<String> home = elements(job.destination);
      if (!there.isEmpty() && there.size() < home.size() && home.subList(0, there.size()).equals(there)) {
        return Optional.of(job);
      }
    }
    return Optional.empty();
  }

  /** Returns the job whose destination is the longest that a path is at or below. */
  static Optional<PendingJob> of(SparkConf conf, String path) {
    PendingJob found = null;
    for (PendingJob job : all(conf)) {
      if (job.relative(path).isPresent()
          && (found == null || elements(job.destination).size() > elements(found.destination).size())) {
        found = job;
      }
    }
    if (found == null) {
      return Optional.empty();
    }
    return isHidden(found.relative(path).get()) ? Optional.empty() : Optional.of(found);
  }

  /**
   * Returns whether readers of datasets skip a path: an element begins with "." or "_", and is no _column=value, or
   * ends as a file does that is being copied.
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
