/* What every model of this directory shares. See docs/explanation/model.md. */

/* A named invariant: the checker's report says which one broke. The bits never differ from 0 in a state that is kept. */
#define RULE(name, holds) if :: (holds) :: else -> name = 1; assert(!name) fi

/* How many writes may take effect late, and how many listings of the log may lag. */
#ifndef LATE
#define LATE 1
#endif
#ifndef LAG
#define LAG 0
#endif
#ifndef MORTAL
#define MORTAL 1
#endif

byte late = LATE;
byte lag = LAG;
bit mortal = MORTAL;    /* processes may die: all but those that recover */
bit crashed;        /* one did */
byte running;       /* actors that are neither done nor dead */

/* The late writes: a copy of a request that takes effect once more, at any later moment.
   They arrive in any order. */
typedef Request { byte op; byte a; byte b; short c; byte d; byte e }
#if LATE > 1
Request net[LATE];
#else
Request net[1];
#endif
byte flying;        /* requests in flight */

inline launch(what, one, two, three, four, five) {
  late--;
  net[flying].op = what; net[flying].a = one; net[flying].b = two; net[flying].c = three;
  net[flying].d = four; net[flying].e = five;
  flying++
}

/* The request in slot `slot` has arrived. */
inline landed(slot) {
  flying--;
  do
  :: slot < flying ->
    net[slot].op = net[slot + 1].op; net[slot].a = net[slot + 1].a; net[slot].b = net[slot + 1].b;
    net[slot].c = net[slot + 1].c; net[slot].d = net[slot + 1].d; net[slot].e = net[slot + 1].e;
    slot++
  :: else -> break
  od;
  net[flying].op = 0; net[flying].a = 0; net[flying].b = 0; net[flying].c = 0; net[flying].d = 0; net[flying].e = 0;
  slot = 0
}

/* Any of the requests in flight. */
inline any(slot) {
  slot = 0;
  do :: slot + 1 < flying -> slot++ :: break od
}

/* One write: it takes effect; it takes effect, and again later; it takes effect later only, and its sender gives up;
   or its sender dies before it. */
#define SEND(effect, o, v, w, x, y, z) \
  if \
  :: effect \
  :: late > 0 && mortal -> launch(o, v, w, x, y, z); effect \
  :: late > 0 && mortal -> launch(o, v, w, x, y, z); goto dead \
  :: mortal -> goto dead \
  fi
