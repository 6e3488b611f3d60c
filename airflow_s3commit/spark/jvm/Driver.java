package s3commit.spark;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.UUID;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.slf4j.LoggerFactory;

/**
 * This JVM among the drivers of a stage attempt.
 *
 * <p>A driver is a JVM, whatever contexts it starts one after the other. A cluster manager may start a second one
 * for a submission whose first one died. Numbers show which came later, not clocks: each driver takes
 * the number after those that it finds. Two that take the same number began at once, and nobody can tell which one
 * counts.
 *
 * <p>A driver that has sealed writes, and was not killed, says so at the end of each of its contexts. A second
 * driver then has the stage refused: only a killed driver's output may be discarded for that of the next one.
 */
final class Driver {
  private static final UUID JVM = UUID.randomUUID();
  private static final int DIGITS = 6;
  private static final String BEGUN = "driver.json";
  private static final String ENDED = "ended.json";

  /** The content of records that say all by their names. */
  private static final String RECORD = "{\"version\":1}";

  /** The directory of this JVM's seals, by that of all drivers of a stage attempt. */
  private static final Map<Path, Path> HOMES = new HashMap<>();

  /** What notes the end of this JVM, by the directory of its seals. */
  private static final Map<Path, Writer> WITH_SEALS = new HashMap<>();

  interface Writer {
    void write(Path file, String body) throws IOException;
  }

  private Driver() {}

  /**
   * Returns the directory of this JVM's seals of a stage attempt. The first call takes a number for it.
   *
   * @param drivers The directory of all drivers of the stage attempt.
   */
  static synchronized Path home(FileSystem fs, Path drivers, Writer writer) throws IOException {
    Path home = HOMES.get(drivers);
    if (home == null) {
      String number = String.format(Locale.ROOT, "%0" + DIGITS + "d", newest(fs, drivers) + 1);
      home = new Path(drivers, number + "-" + JVM);
      writer.write(new Path(home, BEGUN), RECORD);
      HOMES.put(drivers, home);
    }
    return home;
  }

  /** Returns whether what this JVM wrote first is still there: what deleted it, deleted more of the job. */
  static boolean isThere(FileSystem fs, Path home) throws IOException {
    return Records.exists(fs, new Path(home, BEGUN));
  }

  /** Returns whether a driver has begun after this one. */
  static boolean isSucceeded(FileSystem fs, Path home) throws IOException {
    return newest(fs, home.getParent()) > number(home);
  }

  /** Returns an earlier driver that has sealed writes and was not killed. */
  static Optional<String> ended(FileSystem fs, Path home) throws IOException {
    for (FileStatus there : list(fs, home.getParent())) {
      Path earlier = there.getPath();
      if (number(earlier) < number(home) && Records.exists(fs, new Path(earlier, ENDED))) {
        return Optional.of(earlier.getName());
      }
    }
    return Optional.empty();
  }

  /** Remembers that this JVM has sealed a write. */
  static synchronized void hasSealed(Path home, Writer writer) {
    WITH_SEALS.put(home, writer);
  }

  /** Forgets a job that has ended: it needs no note of the end of this JVM. */
  static synchronized void forget(String job) {
    String home = "/__magic_job-" + job + "/";
    HOMES.keySet().removeIf(drivers -> drivers.toString().contains(home));
    WITH_SEALS.keySet().removeIf(drivers -> drivers.toString().contains(home));
  }

  /** Notes that a context, or the JVM, ends without having been killed. */
  static synchronized void end() {
    WITH_SEALS.forEach(
        (home, writer) -> {
          try {
            writer.write(new Path(home, ENDED), RECORD);
          } catch (IOException | RuntimeException error) {
            LoggerFactory.getLogger(Driver.class)
                .warn("{} does not say that the driver has ended: a second one would pass for its restart", home, error);
          }
        });
  }

  private static int newest(FileSystem fs, Path drivers) throws IOException {
    int newest = 0;
    for (FileStatus there : list(fs, drivers)) {
      newest = Math.max(newest, number(there.getPath()));
    }
    return newest;
  }

  private static FileStatus[] list(FileSystem fs, Path drivers) throws IOException {
    try {
      return fs.listStatus(drivers);
    } catch (FileNotFoundException error) {
      // This is the first driver.
      return new FileStatus[0];
    }
  }

  private static int number(Path home) {
    return Integer.parseInt(home.getName().substring(0, DIGITS));
  }
}
