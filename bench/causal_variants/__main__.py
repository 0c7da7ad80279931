from bench.causal_variants.variants import main

if __name__ == "__main__":  # in a file of its own: processes of a pool do not import a package's __main__
    main()
