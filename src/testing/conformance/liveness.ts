// What the rows of a store let a watcher know: who is silent is told by a counter that stands still on the watcher's own clock, and
// by no instant of anybody else's.
import assert from "node:assert/strict";
import { LEASE_MS } from "./drafts.ts";
import type { Scene, Specify } from "./scene.ts";
import type { Liveness } from "../../core/liveness.ts";
import { Lookout } from "../../core/lookout.ts";
import { virtualClock } from "../virtual-clock.ts";

const LOOK_MS = LEASE_MS / 10;
const BEAT = { loopLagMs: 0 };

/** Nothing is proved: only heartbeats speak. */
const noLocks: Liveness = {
  take: () => assert.fail("a watcher takes no lock"),
  probe: async () => "unknown",
  clean: async () => false,
};

export function specifyLiveness(specify: Specify): void {
  specify("a worker that does not beat for one lease is silent, one that does is not", async (scene) => {
    await scene.worker("mute");
    await scene.worker("well");
    const watcher = new Watcher(scene);
    for (let look = 0; look < 10; look++) {
      assert.deepEqual(await watcher.look(), []);
      await scene.store.beat("well", BEAT);
    }
    assert.deepEqual(await watcher.look(), ["mute"]);
  });

  specify("museum 5: a job that runs for many leases is not taken from a worker that beats", async (scene) => {
    await scene.enqueue("a");
    const worker = await scene.worker("w");
    await worker.next();
    const watcher = new Watcher(scene);
    for (let look = 0; look < 50; look++) {
      await scene.store.beat("w", BEAT);
      assert.deepEqual(await watcher.look(), []);
    }
    assert.deepEqual(await scene.states("a"), ["running"]);
  });

  specify("museum 17: a watcher whose wall clock is days away from the store's judges as any other", async (scene) => {
    const watchers = [-3, 0, 3].map((days) => new Watcher(scene, days * 86_400_000));
    await scene.worker("mute");
    await scene.worker("well");
    for (let look = 0; look < 10; look++) {
      for (const watcher of watchers) assert.deepEqual(await watcher.look(), []);
      await scene.store.beat("well", BEAT);
    }
    for (const watcher of watchers) assert.deepEqual(await watcher.look(), ["mute"]);
  });

  specify("museum 17: a wall clock that jumps kills nobody: the watch starts again", async (scene) => {
    await scene.worker("w");
    const watcher = new Watcher(scene);
    for (let look = 0; look < 9; look++) assert.deepEqual(await watcher.look(), []);
    watcher.clock.jump(3_600_000);
    for (let look = 0; look < 10; look++) assert.deepEqual(await watcher.look(), []);
    assert.deepEqual(await watcher.look(), ["w"]);
  });

  specify(
    "museum 18: a watcher that was asleep itself takes nobody for dead: the watch starts again",
    async (scene) => {
      await scene.worker("w");
      const watcher = new Watcher(scene);
      assert.deepEqual(await watcher.look(), []);
      await watcher.clock.advance(10 * LEASE_MS);
      assert.deepEqual(await watcher.look(), []);
      await scene.store.beat("w", BEAT);
      for (let look = 0; look < 10; look++) assert.deepEqual(await watcher.look(), []);
    },
  );
}

/** Another process that looks at the workers' rows now and then, by a clock of its own. */
class Watcher {
  readonly clock = virtualClock();
  readonly #scene: Scene;
  readonly #lookout: Lookout;

  constructor(scene: Scene, aheadMs = 0) {
    this.#scene = scene;
    this.clock.jump(aheadMs);
    this.#lookout = new Lookout({
      clock: this.clock,
      liveness: noLocks,
      processState: () => "unknown",
      bootId: "boot-1",
    });
  }

  /** Looks, and then waits until the next look. Answers who is dead. */
  async look(): Promise<readonly string[]> {
    const dead = await this.#lookout.look(await this.#scene.store.workers({}), LOOK_MS);
    await this.clock.advance(LOOK_MS);
    return dead.map(({ worker }) => worker.id);
  }
}
