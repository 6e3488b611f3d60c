package s3commit.spark;

import java.io.IOException;
import java.io.OutputStream;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/** Reads and writes records of a job through S3A, with as few requests as S3A lets them take. */
final class Records {
  /** The setting of S3A for paths whose files become pending uploads. */
  static final String MAGIC = "fs.s3a.committer.magic.enabled";

  /** File systems without such paths, by bucket: each has its own threads and connections, and is slow to start. */
  private static final Map<String, FileSystem> OUTSIDE = new HashMap<>();

  private Records() {}

  /** Writes a record past S3A's magic paths, where it would become a pending upload itself. */
  static void writeOutside(Configuration conf, Path file, byte[] body) throws IOException {
    if (conf.getBoolean("fs." + file.toUri().getScheme() + ".impl.disable.cache", false)) {
      try (FileSystem fs = outside(conf, file)) {
        write(fs, file, body);
      }
    } else {
      write(kept(conf, file), file, body);
    }
  }

  private static synchronized FileSystem kept(Configuration conf, Path file) throws IOException {
    String bucket = file.toUri().getScheme() + "://" + file.toUri().getAuthority();
    FileSystem known = OUTSIDE.get(bucket);
    if (known == null) {
      known = outside(conf, file);
      OUTSIDE.put(bucket, known);
    }
    return known;
  }

  private static FileSystem outside(Configuration conf, Path file) throws IOException {
    Configuration settings = new Configuration(conf);
    settings.setBoolean(MAGIC, false);
    settings.setBoolean("fs.s3a.bucket." + file.toUri().getAuthority() + ".committer.magic.enabled", false);
    return FileSystem.newInstance(file.toUri(), settings);
  }

  /** Writes a record, over any that is there. */
  static void write(FileSystem fs, Path file, byte[] body) throws IOException {
    FSDataOutputStreamBuilder<?, ?> builder = fs.createFile(file).overwrite(true).recursive();
    builder.opt("fs.s3a.create.performance", true);
    try (OutputStream out = builder.build()) {
      out.write(body);
    }
  }

  /**
   * Returns whether there is a record, with one request: asked for a status, S3A looks for a directory too, and the
   * stream of Hadoop 3.5 logs an error with its stack if a file that is opened is missing.
   */
  @SuppressWarnings("deprecation")
  static boolean exists(FileSystem fs, Path file) throws IOException {
    return fs.isFile(file);
  }

  static String sha256(byte[] body) {
    try {
      StringBuilder digits = new StringBuilder();
      for (byte one : MessageDigest.getInstance("SHA-256").digest(body)) {
        digits.append(String.format(Locale.ROOT, "%02x", one));
      }
      return digits.toString();
    } catch (NoSuchAlgorithmException error) {
      throw new IllegalStateException(error);
    }
  }
}
