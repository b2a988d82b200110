// Drains the floor's queue on Redis, a round at a time, and says when each batch was settled.
import { given, monoMs, serve } from "../../program.ts";
import { RedisFloor } from "../../stores/redis-floor.ts";

const { url, batch, every } = given<{ url: string; batch: number; every: number }>();
const queue = await RedisFloor.open(url);

serve({
  fill: ({ count }: { count: number }) => queue.fill(count),
  go: async () => {
    const marks: number[] = [];
    await queue.drain(batch, (count) => {
      const at = monoMs();
      for (let n = 0; n < count; n += every) marks.push(at);
    });
    return { marks };
  },
});
