// The metrics of all worker processes as one: what the living say now, what the dead had said last, and the supervisor's own, which
// alone reads the store.
import type { EngineEvent } from "../../core/events.ts";
import type { Engine } from "../../engine.ts";
import { aggregatedText, attachMetrics, lasting, type MetricsSnapshot } from "../../metrics.ts";
import { promClient } from "../../prom-client.ts";
import type { Child } from "./child.ts";

export class FleetMetrics {
  readonly #own = new (promClient().Registry)();
  /** One sum, however many have died and whether or not anything scrapes. */
  #ofTheDead: Promise<MetricsSnapshot> = lasting([]);

  /** `early`: what the supervisor's own open told. */
  constructor(engine: Engine, early: readonly EngineEvent[]) {
    attachMetrics(engine, { registry: this.#own, early });
  }

  /** Its last word stays in the sums. What can't be added is left out. */
  bury({ latest }: Child): void {
    if (latest) this.#ofTheDead = this.#ofTheDead.then((sum) => lasting([sum, latest]).catch(() => sum));
  }

  async text(children: readonly Child[]): Promise<string> {
    const [own, buried, ...living] = await Promise.all([
      this.#own.getMetricsAsJSON(),
      this.#ofTheDead,
      ...children.map((child) => child.metrics()),
    ]);
    return aggregatedText([own, buried, ...living.filter((snapshot) => snapshot !== null)]);
  }
}
