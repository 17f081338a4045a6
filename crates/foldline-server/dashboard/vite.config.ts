import { defineConfig } from 'vite';

// The page is served below /foldline/ and possibly below /token/TOKEN/, so all addresses are relative.
// File names carry no hash: the Rust crate embeds them by name and sends an ETag.
export default defineConfig({
  base: './',
  build: {
    outDir: 'dist',
    target: 'es2022',
    modulePreload: false,
    cssCodeSplit: false,
    assetsInlineLimit: 0,
    rollupOptions: {
      output: {
        entryFileNames: 'app.js',
        assetFileNames: (asset) => (asset.names[0]?.endsWith('.css') ? 'app.css' : '[name][extname]'),
      },
    },
  },
});
