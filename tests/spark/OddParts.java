import java.io.FileInputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.mapreduce.Job;
import org.apache.hadoop.mapreduce.TaskAttemptContext;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerTaskEnd;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.execution.datasources.OutputWriter;
import org.apache.spark.sql.execution.datasources.OutputWriterFactory;
import org.apache.spark.sql.execution.datasources.text.TextFileFormat;
import org.apache.spark.sql.types.StructType;

/** Parts that an application may bring along, and that do not behave as Spark's own do. */
public final class OddParts {
  /** A format that writes an index beside each file. */
  public static final class WithIndex extends TextFileFormat {
    @Override
    public OutputWriterFactory prepareWrite(
        SparkSession session, Job job, scala.collection.immutable.Map<String, String> options, StructType schema) {
      return new Indexing(super.prepareWrite(session, job, options, schema));
    }
  }

  private static final class Indexing extends OutputWriterFactory {
    private final OutputWriterFactory lines;

    Indexing(OutputWriterFactory lines) {
      this.lines = lines;
    }

    @Override
    public String getFileExtension(TaskAttemptContext context) {
      return lines.getFileExtension(context);
    }

    @Override
    public OutputWriter newInstance(String path, StructType schema, TaskAttemptContext context) {
      Path index = new Path(new Path(path).getParent(), "index.bin");
      try (OutputStream out = index.getFileSystem(context.getConfiguration()).create(index)) {
        out.write(1);
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
      return lines.newInstance(path, schema, context);
    }
  }

  /** A listener that reports no task before somebody has written to a pipe. */
  public static final class Slow extends SparkListener {
    private boolean hasWaited;

    @Override
    public void onTaskEnd(SparkListenerTaskEnd end) {
      if (!hasWaited) {
        hasWaited = true;
        try (FileInputStream in = new FileInputStream(System.getenv("PIPE"))) {
          in.read();
        } catch (IOException error) {
          throw new UncheckedIOException(error);
        }
      }
    }
  }
}
