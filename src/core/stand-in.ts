// Heartbeats from the main thread while the keeper's thread boots or is restarted. On a busy machine that may take longer than a short
// lease, and the first jobs of the worker would lose theirs.
import type { KeeperHandle, KeeperListener } from "./backend.ts";
import type { Clock } from "./clock.ts";
import type { KeeperOptions } from "./keeper.ts";
import type { Store } from "./store.ts";

export class StandIn {
  readonly #deps: { readonly clock: Clock; readonly store: Store };
  readonly #options: KeeperOptions;
  readonly #host: Pick<KeeperListener, "beaten">;
  #callOff: (() => void) | undefined;

  constructor(
    deps: { readonly clock: Clock; readonly store: Store },
    options: KeeperOptions,
    host: Pick<KeeperListener, "beaten">,
  ) {
    this.#deps = deps;
    this.#options = options;
    this.#host = host;
  }

  /** Beats until the keeper that `start` starts calls `end`, and no longer than until it is stopped. */
  async until(start: () => Promise<KeeperHandle>): Promise<KeeperHandle> {
    this.begin();
    try {
      const keeper = await start();
      const stop = (): Promise<void> => {
        this.end();
        return keeper.stop();
      };
      return { beat: () => keeper.beat(), stop };
    } catch (thrown) {
      this.end();
      throw thrown;
    }
  }

  begin(): void {
    this.#callOff = this.#deps.clock.after(this.#options.times.heartbeatMs, () => {
      void this.#beat()
        // The keeper, once it is up, reports what is wrong.
        .catch(() => {})
        .finally(() => {
          if (this.#callOff) this.begin();
        });
    });
  }

  end(): void {
    this.#callOff?.();
    this.#callOff = undefined;
  }

  async #beat(): Promise<void> {
    const sentAtMono = this.#deps.clock.mono();
    const answer = await this.#deps.store.beat(this.#options.worker, { loopLagMs: 0 });
    if (this.#callOff && answer.live) this.#host.beaten(sentAtMono, answer);
  }
}
