import java.nio.charset.StandardCharsets;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.s3a.commit.files.PendingSet;
import org.apache.hadoop.fs.s3a.commit.files.SinglePendingCommit;
import org.apache.hadoop.fs.s3a.commit.files.SuccessData;
import org.apache.hadoop.fs.s3a.commit.impl.CommitOperations;
import software.amazon.awssdk.services.s3.model.CompletedPart;

/**
 * Loads each file with Hadoop's own classes and prints, tab-separated, a line for each thing that it read: uploads,
 * the parts that a completion would name, and the file as Hadoop writes it again.
 */
public final class LoadFiles {
  public static void main(String[] files) throws Exception {
    FileSystem local = FileSystem.getLocal(new Configuration());
    for (String file : files) {
      say("file", file);
      try {
        load(local, new Path(file));
      } catch (Exception | LinkageError error) {
        say("refused", error.getClass().getName(), error.getMessage());
      }
    }
  }

  private static void load(FileSystem local, Path file) throws Exception {
    String name = file.getName();
    byte[] again;
    if (name.endsWith(".pendingset")) {
      PendingSet set = PendingSet.load(local, file, null);
      for (SinglePendingCommit commit : set.getCommits()) {
        upload(commit);
      }
      again = set.toBytes(PendingSet.serializer());
    } else if (name.endsWith(".pending")) {
      SinglePendingCommit commit = SinglePendingCommit.load(local, file, null, SinglePendingCommit.serializer());
      upload(commit);
      again = commit.toBytes(SinglePendingCommit.serializer());
    } else {
      again = SuccessData.serializer().toBytes(SuccessData.load(local, file));
    }
    say("again", new String(again, StandardCharsets.UTF_8));
  }

  private static void upload(SinglePendingCommit commit) {
    say("upload", commit.getBucket(), commit.getDestinationKey(), commit.destinationPath());
    for (CompletedPart part : CommitOperations.toPartEtags(commit.getEtags())) {
      say("part", part.partNumber(), part.eTag(), part.checksumCRC32C());
    }
  }

  private static void say(Object... values) {
    StringBuilder line = new StringBuilder();
    for (Object value : values) {
      line.append(line.length() == 0 ? "" : "\t").append(String.valueOf(value).replaceAll("[\\r\\n\\t]", " "));
    }
    byte[] bytes = line.append('\n').toString().getBytes(StandardCharsets.UTF_8);
    System.out.write(bytes, 0, bytes.length);
    System.out.flush();
  }
}
