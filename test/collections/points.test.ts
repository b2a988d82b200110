// A sample of the table of kills at ten points of a collection's life. The whole of it, on every store and with deaths of the broker, is
// `npm run torture -- --collections --points`.
import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import type { Point } from "../../proof/torture/collections/point-plan.ts";
import { killAtPoints } from "../../proof/torture/collections/points.ts";
import { freshKind, sharedRabbitmq } from "../support/rabbitmq.ts";
import { RedisServer } from "../support/redis.ts";

const SAMPLE = {
  worker: ["after the last commit", "in clean-up"],
  store: ["before ack"],
} as const satisfies Record<string, readonly Point[]>;

for (const [victim, points] of Object.entries(SAMPLE) as [keyof typeof SAMPLE, readonly Point[]][])
  test(`the ${victim} is killed at points of a collection's life: every part is stored once, one job follows, and notifications have one id`, async (t) => {
    const folder = mkdtempSync(join(tmpdir(), "outlive-test-"));
    const store = await RedisServer.create({ fsync: "always" });
    t.after(async () => {
      await store.destroy();
      rmSync(folder, { recursive: true, force: true, maxRetries: 10 });
    });
    const broken = await killAtPoints({
      url: store.url(),
      folder,
      points,
      victim,
      broker: { url: await sharedRabbitmq(), server: null },
      store,
      name: freshKind,
    });
    assert.deepEqual(broken, []);
  });
