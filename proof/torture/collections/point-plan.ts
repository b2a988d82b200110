// The ten points of a collection's life at which something dies, and what rig and workers agree on.
import { collection } from "../../../src/index.ts";

/** In the order in which a collection passes them. The last two are of one that is abandoned. */
export const POINTS = [
  "before put",
  "after put",
  "after commit",
  "before ack",
  "after the last commit",
  "after the end",
  "after publish",
  "after confirm",
  "in abandon",
  "in clean-up",
] as const;
export type Point = (typeof POINTS)[number];

export interface PointTask {
  readonly url: string;
  readonly broker: string;
  readonly kind: string;
  readonly point: Point;
  /** Blobs, effects, and the files by which rig and worker wait for each other. */
  readonly folder: string;
}

/** The last one is never sent to a collection that is to be abandoned. */
export const PARTS = 4;
export const ID = "tx";

export function isAbandoned(point: Point): boolean {
  return point === "in abandon" || point === "in clean-up";
}

export function resultsOf(kind: string): string {
  return `${kind}.results`;
}

export function contentOf(ordinal: number): Buffer {
  return Buffer.from(`part ${ordinal} `.repeat(500));
}

/** One message in hand at a time: parts are stored in the order in which they were sent. */
export function collectionOf(kind: string, point: Point) {
  return collection(kind, {
    series: ["files"],
    message: { max: "1MB" },
    memory: "1MB",
    retry: { attempts: 100, crashes: 20, backoff: { base: "10ms", max: "200ms" } },
    ...(isAbandoned(point) && { keep: "1ms" }),
  });
}
