package s3commit.spark;

import java.util.ArrayList;
import java.util.List;
import scala.collection.Iterable;
import scala.collection.Iterator;
import scala.collection.immutable.$colon$colon;
import scala.collection.immutable.Nil$;

/** Scala's {@code Seq}, which is another type in 2.12 than in 2.13, so methods that have one are called by name. */
final class Seqs {
  private Seqs() {}

  /** Returns the elements of a property that is a {@code Seq}. */
  static <T> List<T> of(Object owner, String property) {
    try {
      return list(owner.getClass().getMethod(property).invoke(owner));
    } catch (ReflectiveOperationException error) {
      throw new IllegalStateException(error);
    }
  }

  /** Returns the elements of one of Scala's collections. */
  @SuppressWarnings("unchecked")
  static <T> List<T> list(Object collection) {
    List<T> all = new ArrayList<>();
    for (Iterator<T> each = ((Iterable<T>) collection).iterator(); each.hasNext(); ) {
      all.add(each.next());
    }
    return all;
  }

  /** Returns a list, which is a {@code Seq} in both versions. */
  @SuppressWarnings("unchecked")
  static scala.collection.immutable.List<Object> seq(List<Object> values) {
    scala.collection.immutable.List<Object> all = (scala.collection.immutable.List<Object>) (Object) Nil$.MODULE$;
    for (int number = values.size(); number-- > 0; ) {
      all = new $colon$colon<>(values.get(number), all);
    }
    return all;
  }
}
