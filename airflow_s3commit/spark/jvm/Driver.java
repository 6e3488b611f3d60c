package s3commit.spark;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.UUID;
import java.util.function.Function;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocatedFileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RemoteIterator;
import org.slf4j.LoggerFactory;

/**
 * This JVM among the drivers of a stage attempt.
 *
 * <p>A driver is a JVM, however many contexts it starts one after the other. A cluster manager may start a second
 * driver for a submission whose first one died. Numbers, not clocks, show which came later: each driver takes the
 * number after those that it finds. Two drivers with the same number began at the same time, and nobody can tell
 * which one counts.
 *
 * <p>A driver that has sealed writes, and was not killed, says so at the end of each of its contexts. A second
 * driver is then refused: only a killed driver's output may be discarded in favour of the next one's.
 */
final class Driver {
  private static final UUID JVM = UUID.randomUUID();
  private static final int DIGITS = 6;
  private static final String BEGUN = "driver.json";
  private static final String ENDED = "ended.json";

  /** The content of records whose names say everything. */
  private static final String RECORD = "{\"version\":1}";

  /** The name of this JVM among the drivers of a stage attempt, by their directory in any scheme. */
  private static final Map<String, String> NAMES = new HashMap<>();

  /** The writers that note the end of this JVM, by the directory of its seals. */
  private static final Map<Path, Writer> WITH_SEALS = new HashMap<>();

  interface Writer {
    void write(Path file, String body) throws IOException;
  }

  private Driver() {}

  /**
   * Returns the directory of this JVM's seals of a stage attempt. The first call takes a number for it, and writes a
   * record; a later call checks that this record is still there.
   *
   * @param drivers The directory of all drivers of the stage attempt.
   * @param gone Returns the error if the record is gone: whatever deleted it has deleted more of the job.
   */
  static Path home(FileSystem fs, Path drivers, Writer writer, Function<Path, RuntimeException> gone)
      throws IOException {
    Path home;
    synchronized (Driver.class) {
      String place = drivers.toUri().getSchemeSpecificPart();
      String name = NAMES.get(place);
      if (name == null) {
        name = String.format(Locale.ROOT, "%0" + DIGITS + "d", newest(fs, drivers) + 1) + "-" + JVM;
        home = new Path(drivers, name);
        writer.write(new Path(home, BEGUN), RECORD);
        NAMES.put(place, name);
        return home;
      }
      home = new Path(drivers, name);
    }
    if (!Records.exists(fs, new Path(home, BEGUN))) {
      throw gone.apply(home);
    }
    return home;
  }

  /**
   * Returns whether no driver has begun after this one.
   *
   * <p>Whatever ends a job may delete the records just after this method has seen them. But it writes a receipt
   * first, and a driver looks for the receipt after it has written its seal.
   *
   * @param gone As for {@link #home}.
   */
  static boolean isLast(FileSystem fs, Path home, Function<Path, RuntimeException> gone) throws IOException {
    List<Path> all = records(fs, home.getParent());
    if (all.stream().noneMatch(one -> driver(one).equals(home.getName()) && one.getName().equals(BEGUN))) {
      throw gone.apply(home);
    }
    return all.stream().allMatch(one -> number(driver(one)) <= number(home.getName()));
  }

  /** Returns an earlier driver that has sealed writes and was not killed. */
  static Optional<String> ended(FileSystem fs, Path home) throws IOException {
    int number = number(home.getName());
    // The first driver has no earlier ones, and needs no listing to know.
    List<Path> all = number == 1 ? Collections.emptyList() : records(fs, home.getParent());
    return all.stream()
        .filter(one -> one.getName().equals(ENDED) && number(driver(one)) < number)
        .map(Driver::driver)
        .findFirst();
  }

  /** Remembers that this JVM has sealed a write. */
  static synchronized void hasSealed(Path home, Writer writer) {
    WITH_SEALS.put(home, writer);
  }

  /** Forgets a job that has ended: it needs no note of the end of this JVM. */
  static synchronized void forget(String job) {
    String home = "/__magic_job-" + job + "/";
    NAMES.keySet().removeIf(drivers -> drivers.contains(home));
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

  /** Returns the number of the newest driver; 0, which takes S3A one request to tell, if there is none. */
  @SuppressWarnings("deprecation")
  private static int newest(FileSystem fs, Path drivers) throws IOException {
    // S3A asks the store three times before it says that it cannot list a directory.
    List<Path> all = fs.isDirectory(drivers) ? records(fs, drivers) : Collections.emptyList();
    return all.stream().mapToInt(one -> number(driver(one))).max().orElse(0);
  }

  /**
   * Returns the records of all drivers, with one request for a thousand of them.
   *
   * <p>Not their directories: some stores list one whose records were all deleted.
   */
  private static List<Path> records(FileSystem fs, Path drivers) throws IOException {
    List<Path> found = new ArrayList<>();
    try {
      RemoteIterator<LocatedFileStatus> all = fs.listFiles(drivers, true);
      while (all.hasNext()) {
        found.add(all.next().getPath());
      }
    } catch (FileNotFoundException error) {
      // All of them were deleted.
    }
    return found;
  }

  private static String driver(Path record) {
    return record.getParent().getName();
  }

  private static int number(String driver) {
    return Integer.parseInt(driver.substring(0, DIGITS));
  }
}
