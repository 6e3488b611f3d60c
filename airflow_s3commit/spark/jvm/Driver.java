package s3commit.spark;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import java.util.UUID;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * This JVM among the drivers of a stage attempt.
 *
 * <p>A driver is a JVM, whatever contexts it starts one after the other. A cluster manager may start a second one
 * for a submission whose first one died. Numbers show which came later, not clocks: each driver takes
 * the number after those that it finds. Two that take the same number began at once, and nobody can tell which one
 * counts.
 */
final class Driver {
  private static final UUID JVM = UUID.randomUUID();
  private static final int DIGITS = 6;

  /** The directory of this JVM's seals, by that of all drivers of a stage attempt. */
  private static final Map<Path, Path> HOMES = new HashMap<>();

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
      writer.write(new Path(home, "driver.json"), "{\"version\":1}");
      HOMES.put(drivers, home);
    }
    return home;
  }

  /** Returns whether a driver has begun after this one. */
  static boolean isSucceeded(FileSystem fs, Path home) throws IOException {
    return newest(fs, home.getParent()) > number(home);
  }

  private static int newest(FileSystem fs, Path drivers) throws IOException {
    int newest = 0;
    try {
      for (FileStatus there : fs.listStatus(drivers)) {
        newest = Math.max(newest, number(there.getPath()));
      }
    } catch (FileNotFoundException error) {
      // This is the first driver.
    }
    return newest;
  }

  private static int number(Path home) {
    return Integer.parseInt(home.getName().substring(0, DIGITS));
  }
}
