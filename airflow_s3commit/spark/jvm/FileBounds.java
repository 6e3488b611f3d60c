package s3commit.spark;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.math.BigDecimal;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.OffsetDateTime;
import java.time.ZoneOffset;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.BinaryComparison;
import org.apache.spark.sql.catalyst.expressions.EqualTo;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GreaterThan;
import org.apache.spark.sql.catalyst.expressions.GreaterThanOrEqual;
import org.apache.spark.sql.catalyst.expressions.In;
import org.apache.spark.sql.catalyst.expressions.InSet;
import org.apache.spark.sql.catalyst.expressions.IsNotNull;
import org.apache.spark.sql.catalyst.expressions.LessThan;
import org.apache.spark.sql.catalyst.expressions.LessThanOrEqual;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.Or;
import org.apache.spark.sql.execution.datasources.FileIndex;
import org.apache.spark.sql.execution.datasources.FileStatusWithMetadata;
import org.apache.spark.sql.execution.datasources.PartitionDirectory;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * One of Spark's file indexes, without the files whose bounds show that none of their rows pass a filter.
 *
 * <p>A filter that it does not know, or a column without bounds, excludes no file. It is a proxy because methods of
 * the interface take and return Scala's {@code Seq}, which is another type in 2.12 than in 2.13.
 */
public final class FileBounds implements InvocationHandler {
  private static final ObjectMapper JSON = new ObjectMapper();

  /** Before this day, a session may read dates and times of Parquet files by another calendar. */
  private static final LocalDate FIRST = LocalDate.of(1900, 1, 2);

  private final FileIndex index;

  /** What is known of the columns of each file, as JSON: an object for each with bounds and counts. */
  private final Map<Path, String> known;

  private FileBounds(FileIndex index, Map<Path, String> known) {
    this.index = index;
    this.known = known;
  }

  /** Returns an index that applies the bounds in a local file, which has on each line a file's URI, a tab and JSON. */
  public static FileIndex prune(FileIndex index, String file) throws IOException {
    Map<Path, String> known = new HashMap<>();
    for (String line : Files.readAllLines(Paths.get(file))) {
      int tab = line.indexOf('\t');
      known.put(new Path(URI.create(line.substring(0, tab))), line.substring(tab + 1));
    }
    Class<?>[] only = {FileIndex.class};
    return (FileIndex) Proxy.newProxyInstance(FileBounds.class.getClassLoader(), only, new FileBounds(index, known));
  }

  @Override
  public Object invoke(Object proxy, Method method, Object[] given) throws Throwable {
    if (method.getName().equals("equals")) {
      return proxy == given[0];
    }
    try {
      Object found = method.invoke(index, given);
      return method.getName().equals("listFiles") ? pruned(found, Seqs.<Expression>list(given[1])) : found;
    } catch (InvocationTargetException error) {
      throw error.getCause();
    }
  }

  /** Returns partitions without the files that the filters exclude. */
  private Object pruned(Object partitions, List<Expression> filters) throws Exception {
    if (filters.isEmpty()) {
      return partitions;
    }
    List<Object> left = new ArrayList<>();
    for (PartitionDirectory partition : Seqs.<PartitionDirectory>list(partitions)) {
      List<Object> files = new ArrayList<>();
      for (FileStatusWithMetadata file : Seqs.<FileStatusWithMetadata>of(partition, "files")) {
        if (mayPass(filters, known.get(file.getPath()))) {
          files.add(file);
        }
      }
      left.add(PartitionDirectory.class.getConstructors()[0].newInstance(partition.values(), Seqs.seq(files)));
    }
    return Seqs.seq(left);
  }

  private static boolean mayPass(List<Expression> filters, String columns) throws JsonProcessingException {
    if (columns == null) {
      return true;
    }
    JsonNode file = JSON.readTree(columns);
    return filters.stream().allMatch(filter -> mayPass(filter, file));
  }

  /** Returns whether a filter may be true for a row of a file. */
  private static boolean mayPass(Expression filter, JsonNode file) {
    if (filter instanceof And) {
      return mayPass(((And) filter).left(), file) && mayPass(((And) filter).right(), file);
    }
    if (filter instanceof Or) {
      return mayPass(((Or) filter).left(), file) || mayPass(((Or) filter).right(), file);
    }
    if (filter instanceof IsNotNull) {
      Expression column = ((IsNotNull) filter).child();
      return !(column instanceof Attribute) || column(file, column).path("values").asLong(1) > 0;
    }
    if (filter instanceof In) {
      List<Expression> values = Seqs.of(filter, "list");
      return values.stream().anyMatch(value -> mayEqual(((In) filter).value(), value, file));
    }
    if (filter instanceof InSet) {
      Expression column = ((InSet) filter).child();
      List<Object> values = Seqs.list(((InSet) filter).hset());
      return values.stream().anyMatch(value -> mayEqual(column, new Literal(value, column.dataType()), file));
    }
    if (!(filter instanceof BinaryComparison)) {
      return true;
    }
    Expression left = ((BinaryComparison) filter).left();
    Expression right = ((BinaryComparison) filter).right();
    if (filter instanceof EqualTo) {
      return left instanceof Attribute ? mayEqual(left, right, file) : mayEqual(right, left, file);
    }
    boolean isLess = filter instanceof LessThan || filter instanceof LessThanOrEqual;
    // The comparison most likely to hold: the least value of the smaller side, the greatest of the other.
    Literal small = literal(isLess ? left : right, "least", file);
    Literal great = literal(isLess ? right : left, "greatest", file);
    if (small == null || great == null) {
      return true;
    }
    if (filter instanceof LessThan || filter instanceof GreaterThan) {
      return mayHold(new LessThan(small, great));
    }
    return !(isLess || filter instanceof GreaterThanOrEqual) || mayHold(new LessThanOrEqual(small, great));
  }

  private static boolean mayEqual(Expression column, Expression value, JsonNode file) {
    if (!(column instanceof Attribute && value instanceof Literal)) {
      return true;
    }
    Literal least = literal(column, "least", file);
    Literal greatest = literal(column, "greatest", file);
    return (least == null || mayHold(new LessThanOrEqual(least, value)))
        && (greatest == null || mayHold(new LessThanOrEqual(value, greatest)));
  }

  private static boolean mayHold(Expression comparison) {
    return !Boolean.FALSE.equals(comparison.eval(null));
  }

  /** Returns what is known of a column; nothing for one of Spark's own, such as {@code _metadata.file_size}. */
  private static JsonNode column(JsonNode file, Expression column) {
    Attribute named = (Attribute) column;
    return named.metadata().contains("__metadata_col") ? JSON.missingNode() : file.path(named.name());
  }

  /** Returns a literal itself, or a column's bound as one; null if there is no bound. */
  private static Literal literal(Expression side, String bound, JsonNode file) {
    if (side instanceof Literal) {
      return (Literal) side;
    }
    if (!(side instanceof Attribute)) {
      return null;
    }
    Object value = value(column(file, side).path(bound), side.dataType());
    return value == null ? null : new Literal(value, side.dataType());
  }

  /** Returns a bound as Spark represents a value of a type; null if the bound is not certain. */
  private static Object value(JsonNode bound, DataType type) {
    try {
      if (bound.isIntegralNumber() && bound.canConvertToLong()) {
        long number = bound.longValue();
        return type.equals(DataTypes.LongType)
            ? (Object) number
            : type.equals(DataTypes.IntegerType)
                ? (Object) Math.toIntExact(number)
                : null;
      }
      if (bound.isFloatingPointNumber()) {
        return type.equals(DataTypes.DoubleType) ? (Object) bound.doubleValue() : null;
      }
      if (!bound.isTextual()) {
        return null;
      }
      String text = bound.textValue();
      if (type.equals(DataTypes.StringType)) {
        return UTF8String.fromString(text);
      }
      if (type instanceof DecimalType) {
        BigDecimal number = new BigDecimal(text).setScale(((DecimalType) type).scale());
        return Decimal.apply(number, ((DecimalType) type).precision(), ((DecimalType) type).scale());
      }
      if (type.equals(DataTypes.DateType)) {
        LocalDate day = LocalDate.parse(text);
        return day.isBefore(FIRST) ? null : (Object) (int) day.toEpochDay();
      }
      if (type.equals(DataTypes.TimestampType)) {
        return micros(OffsetDateTime.parse(text).toInstant());
      }
      return type.equals(DataTypes.TimestampNTZType)
          ? micros(LocalDateTime.parse(text).toInstant(ZoneOffset.UTC))
          : null;
    } catch (ArithmeticException | IllegalArgumentException | java.time.DateTimeException error) {
      // The column has another type in this file.
      return null;
    }
  }

  private static Object micros(Instant moment) {
    Instant first = FIRST.atStartOfDay().toInstant(ZoneOffset.UTC);
    return moment.isBefore(first) ? null : (Object) ChronoUnit.MICROS.between(Instant.EPOCH, moment);
  }
}
