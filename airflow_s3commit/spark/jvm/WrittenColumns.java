package s3commit.spark;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.apache.spark.sql.catalyst.catalog.ExternalCatalogUtils;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.execution.datasources.InsertIntoHadoopFsRelationCommand;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/**
 * The columns that a command of Spark's writes, as the text that records keep: in Spark's JSON, those of the files
 * before those of the partitions.
 *
 * <p>Each may have nulls, even if this write has none: Spark reads all as nullable, and another write may have some.
 */
final class WrittenColumns {
  /** The most characters of the text that a record takes, and of a name in it. */
  private static final int LONGEST = 128 * 1024;

  private static final int LONGEST_NAME = 8 * 1024;

  private static final Pattern NOT_IN_DELTA_NAMES = Pattern.compile("[ ,;{}()\n\t=]");

  private static final Pattern DELTA_TYPES =
      Pattern.compile(
          "string|boolean|byte|short|integer|long|float|double|date|timestamp|timestamp_ntz|binary|decimal\\(.*\\)");

  private static final ObjectMapper JSON = new ObjectMapper();

  private WrittenColumns() {}

  /** Returns the columns that a command writes below its path; null if its plan or format does not reveal them. */
  static String of(InsertIntoHadoopFsRelationCommand command) {
    if (!command.query().resolved() || !(command.fileFormat() instanceof DataSourceRegister)) {
      return null;
    }
    List<Attribute> partitions = Seqs.of(command, "partitionColumns");
    Set<Object> outside = partitions.stream().map(Attribute::exprId).collect(Collectors.toSet());
    List<Attribute> columns = Seqs.of(command, "outputColumns");
    columns.removeIf(column -> outside.contains(column.exprId()));
    columns.addAll(partitions);
    StructType types =
        new StructType(
            columns.stream()
                .map(one -> new StructField(one.name(), one.dataType(), one.nullable(), one.metadata()))
                .toArray(StructField[]::new));
    try {
      ObjectNode text = JSON.createObjectNode();
      text.put("format", ((DataSourceRegister) command.fileFormat()).shortName());
      text.set("spark", JSON.readTree(types.asNullable().json()));
      ArrayNode names = text.putArray("partitions");
      partitions.forEach(column -> names.add(column.name()));
      return JSON.writeValueAsString(text);
    } catch (JsonProcessingException error) {
      throw new IllegalStateException(error);
    }
  }

  /**
   * Returns the columns of a write to a directory of its table: the partition columns of the directory have no type.
   *
   * @param columns The columns that are written below the directory.
   * @param directory The directory, relative to the table; "" for the table itself.
   * @return The columns; null if one occurs twice, or a name or the whole text is too long for a record.
   */
  static String below(String columns, String directory) throws JsonProcessingException {
    ObjectNode text = (ObjectNode) JSON.readTree(columns);
    ArrayNode fields = (ArrayNode) text.get("spark").get("fields");
    ArrayNode partitions = (ArrayNode) text.get("partitions");
    int inFiles = fields.size() - partitions.size();
    int outer = 0;
    for (String element : directory.split("/")) {
      int end = element.indexOf('=');
      if (end > 0) {
        String name = ExternalCatalogUtils.unescapePathName(element.substring(0, end));
        fields.insertObject(inFiles + outer).put("name", name).put("type", "void");
        partitions.insert(outer, name);
        outer++;
      }
    }
    Set<String> names = new HashSet<>();
    for (JsonNode field : fields) {
      String name = field.get("name").asText();
      if (!names.add(name) || name.length() > LONGEST_NAME) {
        return null;
      }
      if (field.path("nullable").asBoolean()) {
        ((ObjectNode) field).remove("nullable");
      }
      if (field.path("metadata").isEmpty()) {
        ((ObjectNode) field).remove("metadata");
      }
    }
    String whole = JSON.writeValueAsString(text);
    return whole.length() > LONGEST ? null : whole;
  }

  /**
   * Returns why a Delta table cannot have columns that {@link #below} has returned; null if it can. The commit checks
   * this again, together with the table's other files.
   */
  static String notInDelta(String columns) throws JsonProcessingException {
    if (columns == null) {
      return "the columns of the write are unknown: write a DataFrame, in Parquet";
    }
    JsonNode text = JSON.readTree(columns);
    if (!text.get("format").asText().equals("parquet")) {
      return "Delta reads Parquet alone, not " + text.get("format").asText();
    }
    Set<String> outside = new HashSet<>();
    text.get("partitions").forEach(name -> outside.add(name.asText()));
    for (JsonNode field : text.get("spark").get("fields")) {
      boolean isUntyped = outside.contains(field.get("name").asText()) && field.get("type").asText().equals("void");
      String lacking = isUntyped ? null : lacking(field);
      if (lacking != null) {
        return lacking;
      }
    }
    return null;
  }

  /** Returns why Delta cannot have a column, or a field at any depth within it; null if it can. */
  private static String lacking(JsonNode field) {
    String name = field.get("name").asText();
    if (NOT_IN_DELTA_NAMES.matcher(name).find()) {
      return "column '" + name + "': Delta has no names with ' ,;{}()=', tabs and line feeds; rename it";
    }
    return lacking(name, field.get("type"));
  }

  private static String lacking(String name, JsonNode type) {
    if (type.isTextual()) {
      return DELTA_TYPES.matcher(type.asText()).matches()
          ? null
          : "column '" + name + "' has the type " + type.asText() + ", which Delta does not have: cast it";
    }
    for (JsonNode field : type.path("fields")) {
      String inner = lacking(field);
      if (inner != null) {
        return inner;
      }
    }
    for (String part : Arrays.asList("elementType", "keyType", "valueType")) {
      String inner = type.has(part) ? lacking(name, type.get(part)) : null;
      if (inner != null) {
        return inner;
      }
    }
    return null;
  }
}
