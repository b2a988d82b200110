// Raw durable inserts on Redis, in statements of the size that is asked for.
import { given, serve } from "../../program.ts";
import { RedisFloor } from "../../stores/redis-floor.ts";
import { payload } from "../noop.ts";

const { url } = given<{ url: string }>();
const inserts = await RedisFloor.open(url);

serve({
  insert: async ({ count, batch }: { count: number; batch: number }) => {
    const from = performance.now();
    await inserts.insert(count, batch, payload);
    return (count * 1_000) / (performance.now() - from);
  },
});
