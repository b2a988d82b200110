// Raw durable inserts, in transactions of the size that is asked for.
import { FloorInserts } from "../floor.ts";
import { given, serve } from "../program.ts";
import { payload } from "./noop.ts";

const { path } = given<{ path: string }>();
const inserts = new FloorInserts(path);

serve({
  insert: ({ count, batch }: { count: number; batch: number }) => {
    const from = performance.now();
    inserts.insert(count, batch, payload);
    return (count * 1_000) / (performance.now() - from);
  },
});
