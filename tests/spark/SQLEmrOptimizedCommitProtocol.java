package org.apache.spark.sql.execution.datasources;

/** Stands for the commit protocol of EMR's Spark, which is no part of Spark's own: says that it was asked. */
public final class SQLEmrOptimizedCommitProtocol extends SQLHadoopMapReduceCommitProtocol {
  private static final long serialVersionUID = 1L;

  public SQLEmrOptimizedCommitProtocol(String writeId, String path, boolean dynamicPartitionOverwrite) {
    super(writeId, path, dynamicPartitionOverwrite);
    throw new IllegalStateException("EMR's protocol was asked to write to " + path);
  }
}
