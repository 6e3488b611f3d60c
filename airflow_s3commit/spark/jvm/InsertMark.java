package s3commit.spark;

import java.lang.reflect.Constructor;
import java.lang.reflect.Method;
import java.util.Optional;
import org.apache.hadoop.conf.Configuration;
import org.apache.spark.sql.SaveMode;
import org.apache.spark.sql.catalyst.catalog.ExternalCatalogUtils;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.execution.datasources.FileFormat;
import org.apache.spark.sql.execution.datasources.InsertIntoHadoopFsRelationCommand;
import scala.Option;
import scala.collection.immutable.Map;
import scala.runtime.AbstractPartialFunction;

/**
 * What a command of Spark's means to overwrite, and the columns that it writes: its save mode, its static partitions
 * and the types of its columns.
 *
 * <p>Spark asks the commit protocol to delete what a write overwrites only if that exists, and the files of an
 * earlier pending write do not exist yet. The command knows what it overwrites, but Spark does not say which command
 * a protocol belongs to: one statement may have several, on one path. So a rule of the analyzer puts a mark into
 * each command's options, which Spark passes on in the configuration that the protocol of that command gets.
 */
final class InsertMark {
  private static final String KEY = "spark.s3commit.pending.insert";

  private static final String COLUMNS = "spark.s3commit.pending.columns";

  /** Positions in the command's constructor: of its options, and of the parameters around them. */
  private static final int FORMAT = 5;

  private static final int OPTIONS = 6;
  private static final int QUERY = 7;

  final SaveMode mode;

  /** The directory of the static partitions, relative to the write's path, behind a slash; "" without any. */
  final String directory;

  /** The columns that are written below the write's path, as {@link WrittenColumns} has them; null if unknown. */
  final String columns;

  private InsertMark(SaveMode mode, String directory, String columns) {
    this.mode = mode;
    this.directory = directory;
    this.columns = columns;
  }

  /** Returns the mark of the command whose write has this configuration; empty if its session has no guard. */
  static Optional<InsertMark> of(Configuration conf) {
    // Raw: a partition's value, or a column's name, may look like a variable.
    String mark = conf.getRaw(KEY);
    if (mark == null) {
      return Optional.empty();
    }
    int end = mark.indexOf('/');
    SaveMode mode = SaveMode.valueOf(end < 0 ? mark : mark.substring(0, end));
    return Optional.of(new InsertMark(mode, end < 0 ? "" : mark.substring(end), conf.getRaw(COLUMNS)));
  }

  /** Marks each command of a plan that writes files. */
  static final class Marking extends Rule<LogicalPlan> {
    @Override
    public LogicalPlan apply(LogicalPlan plan) {
      return plan.resolveOperators(new Mark());
    }
  }

  private static final class Mark extends AbstractPartialFunction<LogicalPlan, LogicalPlan> {
    @Override
    public boolean isDefinedAt(LogicalPlan node) {
      return node instanceof InsertIntoHadoopFsRelationCommand;
    }

    @Override
    public <A1 extends LogicalPlan, B1> B1 applyOrElse(A1 node, scala.Function1<A1, B1> otherwise) {
      if (!isDefinedAt(node)) {
        return otherwise.apply(node);
      }
      @SuppressWarnings("unchecked")
      B1 marked = (B1) marked((InsertIntoHadoopFsRelationCommand) node);
      return marked;
    }
  }

  private static InsertIntoHadoopFsRelationCommand marked(InsertIntoHadoopFsRelationCommand command) {
    try {
      String mark = command.mode().name() + staticDirectory(command);
      // By name, because the types of these methods are Scala's: of 2.12 or of 2.13.
      Constructor<?> constructor = command.getClass().getConstructors()[0];
      Class<?>[] types = constructor.getParameterTypes();
      if (types.length <= QUERY
          || types[FORMAT] != FileFormat.class
          || types[OPTIONS] != Map.class
          || types[QUERY] != LogicalPlan.class) {
        throw new UnsupportedOperationException(
            "this Spark is not known to the jar of airflow-s3commit: its write commands have other parts");
      }
      Object[] parts = new Object[types.length];
      for (int part = 0; part < types.length; part++) {
        parts[part] = command.productElement(part);
      }
      Method updated = Map.class.getMethod("updated", Object.class, Object.class);
      parts[OPTIONS] = updated.invoke(parts[OPTIONS], KEY, mark);
      String columns = WrittenColumns.of(command);
      if (columns != null) {
        parts[OPTIONS] = updated.invoke(parts[OPTIONS], COLUMNS, columns);
      }
      InsertIntoHadoopFsRelationCommand marked =
          (InsertIntoHadoopFsRelationCommand) constructor.newInstance(parts);
      marked.copyTagsFrom(command);
      return marked;
    } catch (ReflectiveOperationException error) {
      throw new IllegalStateException(error);
    }
  }

  private static String staticDirectory(InsertIntoHadoopFsRelationCommand command) {
    StringBuilder directory = new StringBuilder();
    for (Attribute column : Seqs.<Attribute>of(command, "partitionColumns")) {
      String name = column.name();
      Option<String> value = command.staticPartitions().get(name);
      if (value.isDefined()) {
        directory.append('/').append(ExternalCatalogUtils.getPartitionPathString(name, value.get()));
      }
    }
    return directory.toString();
  }
}
