// Raw durable inserts, in transactions of the size that is asked for.
import { FloorInserts } from "../stores/sqlite-floor.ts";
import { fileOf } from "../stores/sqlite.ts";
import { given, serve } from "../program.ts";
import { payload } from "./noop.ts";

const { url } = given<{ url: string }>();
const inserts = new FloorInserts(fileOf(url));

serve({
  insert: ({ count, batch }: { count: number; batch: number }) => {
    const from = performance.now();
    inserts.insert(count, batch, payload);
    return (count * 1_000) / (performance.now() - from);
  },
});
