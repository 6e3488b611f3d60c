package s3commit.spark;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.util.JsonSerialization;

/**
 * The uploads that task attempts of this JVM have left pending, as S3A remembers them.
 *
 * <p>S3A names a task attempt by the fourth directory below the magic one, and forgets nothing by itself. Its classes
 * are looked up by name, because Spark's distributions do not have them.
 */
final class PendingUploads {
  private static final String TRACKER = "org.apache.hadoop.fs.s3a.commit.magic.InMemoryMagicCommitTracker";
  private static final ObjectMapper JSON = new ObjectMapper();

  private PendingUploads() {}

  /** Returns whether this release of S3A can remember uploads. */
  static boolean canBeKnown(FileSystem fs) {
    try {
      tracker(fs);
      return true;
    } catch (ClassNotFoundException error) {
      return false;
    }
  }

  /** Returns the uploads of a task attempt, which S3A then forgets, in the format of its {@code .pending} files. */
  static List<ObjectNode> take(FileSystem fs, String attempt) throws IOException {
    List<ObjectNode> found = new ArrayList<>();
    try {
      Class<?> tracker = tracker(fs);
      List<Path> paths = PendingUploads.<List<Path>>remembered(tracker, "getTaskAttemptIdToPath").remove(attempt);
      if (paths != null) {
        paths.forEach(remembered(tracker, "getPathToBytesWritten")::remove);
      }
      List<?> uploads =
          PendingUploads.<List<?>>remembered(tracker, "getTaskAttemptIdToMpuMetadata").remove(attempt);
      for (Object upload : uploads == null ? Collections.emptyList() : uploads) {
        @SuppressWarnings("unchecked")
        JsonSerialization<Object> format =
            (JsonSerialization<Object>) upload.getClass().getMethod("serializer").invoke(null);
        found.add((ObjectNode) JSON.readTree(format.toBytes(upload)));
      }
    } catch (ReflectiveOperationException error) {
      throw new IllegalStateException(error);
    }
    return found;
  }

  /** Aborts an upload. */
  static void abort(FileSystem fs, ObjectNode upload) {
    try {
      Object requests = fs.getClass().getMethod("getWriteOperationHelper").invoke(fs);
      requests
          .getClass()
          .getMethod("abortMultipartCommit", String.class, String.class)
          .invoke(requests, upload.get("destinationKey").asText(), upload.get("uploadId").asText());
    } catch (ReflectiveOperationException error) {
      throw new IllegalStateException(error);
    }
  }

  private static Class<?> tracker(FileSystem fs) throws ClassNotFoundException {
    return Class.forName(TRACKER, true, fs.getClass().getClassLoader());
  }

  @SuppressWarnings("unchecked")
  private static <V> Map<Object, V> remembered(Class<?> tracker, String name) throws ReflectiveOperationException {
    return (Map<Object, V>) tracker.getMethod(name).invoke(null);
  }
}
