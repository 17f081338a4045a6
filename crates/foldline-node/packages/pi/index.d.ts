import type { ExtensionAPI } from "@earendil-works/pi-coding-agent";
import type { FoldSettings } from "@foldline/core";

/**
 * Returns an extension with these settings. The window is that of pi's model, unless `window` or `budget` is set. A
 * request that cannot be folded is sent as it is, with a warning; with `strict` it is an error.
 */
export declare function foldline(
  settings?: Omit<FoldSettings, "format"> & { limit?: number; strict?: boolean },
): (pi: ExtensionAPI) => void;

/** The extension with default settings. */
declare const extension: (pi: ExtensionAPI) => void;
export default extension;
