package s3commit.spark;

import java.net.URI;
import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.WeakHashMap;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.SparkSessionExtensionsProvider;
import org.apache.spark.sql.catalyst.TableIdentifier;
import org.apache.spark.sql.catalyst.catalog.CatalogStorageFormat;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.catalog.CatalogTableType;
import org.apache.spark.sql.catalyst.catalog.DropDatabasePreEvent;
import org.apache.spark.sql.catalyst.catalog.DropTablePreEvent;
import org.apache.spark.sql.catalyst.catalog.ExternalCatalogEvent;
import org.apache.spark.sql.catalyst.catalog.ExternalCatalogEventListener;
import org.apache.spark.sql.catalyst.catalog.ExternalCatalogWithListener;
import org.apache.spark.sql.catalyst.catalog.RenameTablePreEvent;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.execution.datasources.InsertIntoHadoopFsRelationCommand;
import scala.Option;
import scala.Product;
import scala.collection.Iterator;
import scala.runtime.AbstractFunction1;
import scala.runtime.BoxedUnit;

/**
 * A session extension that refuses what changes the files of a job's table without the commit protocol.
 *
 * <p>Spark asks no commit protocol before it drops, empties or renames a managed table, nor before Hive moves
 * files; a streaming query has another protocol; and an application may set one itself. All of these are refused
 * before any file is changed. Spark 4 also loads the class by itself, because the jar names it as a service.
 */
public final class CatalogGuard extends AbstractFunction1<SparkSessionExtensions, BoxedUnit>
    implements SparkSessionExtensionsProvider {
  private static final String PROTOCOL = "spark.sql.sources.commitProtocolClass";

  /** How Spark prints a streaming query's sink that writes files. */
  private static final String FILE_SINK = "FileSink[";

  private static final String AT_ONCE = " at once, not when the job commits";
  private static final String OVERWRITE =
      ": use INSERT OVERWRITE or insertInto, or write to the path; or make the table external, with a LOCATION";
  private static final String PATHS =
      ": use a table USING parquet, or write to the path with a DataFrame writer";

  /** Why commands on the files of managed tables are refused, by the names of their classes. */
  private static final Map<String, String> OF_MANAGED = new HashMap<>();

  /** Why commands on the files of any table or directory are refused, by the names of their classes. */
  private static final Map<String, String> OF_ANY = new HashMap<>();

  static {
    OF_MANAGED.put("TruncateTableCommand", "TRUNCATE TABLE would delete files" + AT_ONCE + OVERWRITE);
    OF_MANAGED.put("AlterTableDropPartitionCommand", "DROP PARTITION would delete files" + AT_ONCE + OVERWRITE);
    OF_MANAGED.put("AlterTableRenamePartitionCommand", "RENAME would move files" + AT_ONCE + OVERWRITE);
    OF_ANY.put("LoadDataCommand", "LOAD DATA would move files" + AT_ONCE + PATHS);
    String hive =
        "Hive's own write would rename files" + AT_ONCE + PATHS + "; spark.sql.hive.convertMetastoreParquet,"
            + " convertMetastoreOrc and convertInsertingPartitionedTable must be true for Hive's Parquet and ORC";
    OF_ANY.put("InsertIntoHiveTable", hive);
    OF_ANY.put("CreateHiveTableAsSelectCommand", hive);
    OF_ANY.put("InsertIntoHiveDirCommand", hive);
  }

  /** Catalogs that have the listener. */
  private static final Set<ExternalCatalogWithListener> WATCHED =
      Collections.synchronizedSet(Collections.newSetFromMap(new WeakHashMap<>()));

  @Override
  public BoxedUnit apply(SparkSessionExtensions extensions) {
    extensions.injectPostHocResolutionRule(session -> new InsertMark.Marking());
    extensions.injectCheckRule(
        session ->
            plan -> {
              plan.foreach(node -> check(session, (LogicalPlan) node));
              return BoxedUnit.UNIT;
            });
    return BoxedUnit.UNIT;
  }

  private static BoxedUnit check(SparkSession session, LogicalPlan node) {
    String command = node.getClass().getSimpleName();
    if (node instanceof InsertIntoHadoopFsRelationCommand) {
      checkProtocol(session, ((InsertIntoHadoopFsRelationCommand) node).outputPath().toString());
    } else if (command.equals("WriteToStream")) {
      checkSink(node);
    }
    Object target = target(node);
    if (target != null || command.equals("DropDatabaseCommand")) {
      // Not earlier: a session that uses no table may have no connection to its metastore.
      watch(session.sharedState().externalCatalog());
    }
    if (target instanceof CatalogStorageFormat && OF_ANY.containsKey(command)) {
      refuse("a directory", ((CatalogStorageFormat) target).locationUri(), OF_ANY.get(command));
    } else if (target != null && (OF_ANY.containsKey(command) || OF_MANAGED.containsKey(command))) {
      CatalogTable table = target instanceof CatalogTable ? (CatalogTable) target : find(session, target);
      if (OF_ANY.containsKey(command)) {
        Option<URI> given = table.storage().locationUri();
        URI location =
            given.isDefined()
                ? given.get()
                : session.sessionState().catalog().defaultTablePath(table.identifier());
        refuse(name(table), Option.apply(location), OF_ANY.get(command));
      } else if (isManaged(table)) {
        refuse(name(table), table.storage().locationUri(), OF_MANAGED.get(command));
      }
    }
    return BoxedUnit.UNIT;
  }

  /** Refuses a write to a job's files through a protocol that the application has set. */
  private static void checkProtocol(SparkSession session, String path) {
    String protocol = session.sessionState().conf().fileCommitProtocolClass();
    if (!protocol.equals(PendingCommitProtocol.class.getName())) {
      PendingJob.overlapping(Jobs.all(), path)
          .ifPresent(
              job ->
                  refuse(
                      "job " + job.id + " writes to " + job.destination + ", and " + PROTOCOL + " is " + protocol
                          + ", which would publish the files" + AT_ONCE + ": do not set it in the application; the"
                          + " one for other paths is named by spark.s3commit.pending.otherwise"));
    }
  }

  private static void checkSink(LogicalPlan node) {
    for (Iterator<Object> values = ((Product) node).productIterator(); values.hasNext(); ) {
      String value = String.valueOf(values.next());
      if (value.startsWith(FILE_SINK)) {
        URI location = new Path(value.substring(FILE_SINK.length(), value.length() - 1)).toUri();
        refuse(
            "a streaming query",
            Option.apply(location),
            "It would publish files" + AT_ONCE + ": use airflow_s3commit.spark.foreach_batch");
      }
    }
  }

  /** Returns the table or directory that a node of a plan names; null if it names none. */
  private static Object target(LogicalPlan node) {
    Iterator<Object> values = ((Product) node).productIterator();
    while (values.hasNext()) {
      Object value = values.next();
      if (value instanceof Option && ((Option<?>) value).isDefined()) {
        value = ((Option<?>) value).get();
      }
      if (value instanceof TableIdentifier
          || value instanceof CatalogTable
          || value instanceof CatalogStorageFormat) {
        return value;
      }
    }
    return null;
  }

  private static CatalogTable find(SparkSession session, Object name) {
    try {
      return session.sessionState().catalog().getTableMetadata((TableIdentifier) name);
    } catch (Exception error) {
      throw PendingCommitProtocol.<RuntimeException>unchecked(error);
    }
  }

  private static String name(CatalogTable table) {
    return "table " + table.identifier().unquotedString();
  }

  private static boolean isManaged(CatalogTable table) {
    return table.tableType().equals(CatalogTableType.MANAGED());
  }

  private static void refuse(String target, Option<URI> location, String why) {
    refusal(target, location, why).ifPresent(CatalogGuard::refuse);
  }

  private static void refuse(String text) {
    throw new UnsupportedOperationException(text);
  }

  private static Optional<String> refusal(String target, Option<URI> location, String why) {
    if (location.isEmpty()) {
      return Optional.empty();
    }
    return PendingJob.overlapping(Jobs.all(), location.get().toString())
        .map(
            job ->
                "job " + job.id + " writes to " + job.destination + ", and " + target + " has its files in "
                    + location.get() + ". " + why);
  }

  /** Listens to the catalog too, because some drops have no plan: {@code saveAsTable} calls it directly. */
  private static void watch(ExternalCatalogWithListener catalog) {
    if (WATCHED.add(catalog)) {
      catalog.addListener((ExternalCatalogEventListener) event -> beforeChange(catalog, event));
    }
  }

  private static void beforeChange(ExternalCatalogWithListener catalog, ExternalCatalogEvent event) {
    Optional<String> refusal = Optional.empty();
    if (event instanceof DropDatabasePreEvent) {
      String database = ((DropDatabasePreEvent) event).database();
      if (catalog.databaseExists(database)) {
        refusal =
            refusal(
                "database " + database,
                Option.apply(catalog.getDatabase(database).locationUri()),
                "DROP DATABASE would delete files" + AT_ONCE);
      }
    } else if (event instanceof DropTablePreEvent) {
      DropTablePreEvent drop = (DropTablePreEvent) event;
      refusal =
          ofManaged(
              catalog, drop.database(), drop.name(), "To drop the table would delete files" + AT_ONCE + OVERWRITE);
    } else if (event instanceof RenameTablePreEvent) {
      RenameTablePreEvent rename = (RenameTablePreEvent) event;
      refusal =
          ofManaged(
              catalog, rename.database(), rename.name(), "RENAME would move files" + AT_ONCE + OVERWRITE);
    }
    if (refusal.isPresent()) {
      throw new Refused(refusal.get());
    }
  }

  private static Optional<String> ofManaged(
      ExternalCatalogWithListener catalog, String database, String name, String why) {
    if (!catalog.tableExists(database, name)) {
      return Optional.empty();
    }
    CatalogTable table = catalog.getTable(database, name);
    return isManaged(table)
        ? refusal(name(table), table.storage().locationUri(), why)
        : Optional.empty();
  }

  /** A refusal by a listener. Spark logs a listener's exceptions and goes on; only some errors stop it. */
  private static final class Refused extends LinkageError {
    private static final long serialVersionUID = 1L;

    Refused(String message) {
      super(message);
    }
  }
}
