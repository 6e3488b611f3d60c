package s3commit.spark;

import java.lang.reflect.InvocationTargetException;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.SaveMode;
import org.apache.spark.sql.catalyst.catalog.ExternalCatalogUtils;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.SQLExecution;
import org.apache.spark.sql.execution.datasources.InsertIntoHadoopFsRelationCommand;
import scala.Option;
import scala.collection.Iterator;
import scala.collection.Seq;
import scala.runtime.BoxedUnit;

/**
 * The command that makes Spark's write in this thread of the driver.
 *
 * <p>Spark asks the protocol to delete what a write overwrites only if that exists, which the files of an earlier
 * pending write do not. The command's save mode and static partitions do not depend on what exists.
 */
final class RunningInsert {
  private final InsertIntoHadoopFsRelationCommand command;

  private RunningInsert(InsertIntoHadoopFsRelationCommand command) {
    this.command = command;
  }

  /** Returns the command that writes to a path; empty if it is none of Spark's own. */
  static Optional<RunningInsert> of(SparkContext spark, String path) {
    String id = spark.getLocalProperty(SQLExecution.EXECUTION_ID_KEY());
    QueryExecution query = id == null ? null : SQLExecution.getQueryExecution(Long.parseLong(id));
    if (query == null) {
      return Optional.empty();
    }
    AtomicReference<RunningInsert> found = new AtomicReference<>();
    query
        .analyzed()
        .foreach(
            node -> {
              if (node instanceof InsertIntoHadoopFsRelationCommand) {
                InsertIntoHadoopFsRelationCommand command = (InsertIntoHadoopFsRelationCommand) node;
                if (command.outputPath().toString().equals(path)) {
                  found.compareAndSet(null, new RunningInsert(command));
                }
              }
              return BoxedUnit.UNIT;
            });
    return Optional.ofNullable(found.get());
  }

  SaveMode mode() {
    return command.mode();
  }

  /** Returns the directory of the static partitions, relative to the write's path; "" without any. */
  String staticDirectory() {
    StringBuilder directory = new StringBuilder();
    for (Iterator<Attribute> columns = partitionColumns().iterator(); columns.hasNext(); ) {
      String name = columns.next().name();
      Option<String> value = command.staticPartitions().get(name);
      if (value.isDefined()) {
        directory.append('/').append(ExternalCatalogUtils.getPartitionPathString(name, value.get()));
      }
    }
    return directory.toString();
  }

  /** Returns the partition columns; by name, because the method's type is Scala's: of 2.12 or of 2.13. */
  @SuppressWarnings("unchecked")
  private Seq<Attribute> partitionColumns() {
    try {
      return (Seq<Attribute>) command.getClass().getMethod("partitionColumns").invoke(command);
    } catch (NoSuchMethodException | IllegalAccessException | InvocationTargetException error) {
      throw new IllegalStateException(error);
    }
  }
}
